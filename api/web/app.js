// Speaks through /v1/audio/speech as events and plays each piece as it comes; stores voices to imitate.
import { Player, RATE, samplesOf } from "./player.js";
import { record } from "./recorder.js";
import { Timeline } from "./timeline.js";

const $ = (id) => document.getElementById(id);
const LACKING = {
  custom_voice: "No model with preset voices is loaded.",
  base: "No loaded model can imitate a voice: start the server with a Base checkpoint.",
  voice_design: "No loaded model makes voices from a description: start the server with a VoiceDesign checkpoint.",
};
const timeline = new Timeline($("timeline"));
let models = [], running = null, recording = null, sample = null;

const ms = (seconds) => (seconds == null ? "–" : `${Math.round(seconds * 1000)} ms`);
const problem = (text) => { $("problem").textContent = text || ""; $("problem").hidden = !text; };
const attempt = (work) => async (event) => {
  event?.preventDefault();
  try { problem(""); await work(event); } catch (error) { problem(error.message); }
};

async function ask(path, options = {}) {
  const key = $("key").value.trim();
  const headers = { ...options.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  const reply = await fetch(path, { ...options, headers });
  if (!reply.ok && path !== "/health") throw new Error((await reply.json()).error.message);
  return reply;
}

const json = async (path, options) => (await ask(path, options)).json();

function fill(select, names, chosen) {
  select.replaceChildren(...names.map(([value, label]) => new Option(label, value, false, value === chosen)));
}

const kind = () => document.querySelector("[name=kind]:checked").value;
const model = () => models.find((one) => one.id === $("model").value);

async function load() {
  models = (await json("/v1/models")).data.filter((one) => one.family === "speech");
  const first = models[0]?.kind ?? "custom_voice";
  document.querySelector(`[name=kind][value=${first}]`).checked = true;
  await chooseKind();
}

async function chooseKind() {
  const able = models.filter((one) => one.kind === kind());
  for (const part of document.querySelectorAll("[data-for]")) part.hidden = !part.dataset.for.split(" ").includes(kind());
  fill($("model"), able.map((one) => [one.id, `${one.id} (${one.size})`]));
  $("speak").disabled = !able.length;
  await chooseModel();
}

async function chooseModel(chosen) {
  const languages = model()?.languages.filter((name) => name !== "auto") ?? [];
  fill($("language"), [["", "as the text"], ...languages.map((name) => [name, name])]);
  let voices = [];
  if (model()) voices = (await json(`/v1/audio/voices?model=${encodeURIComponent(model().id)}`)).voices;
  const label = (voice) => (voice.alias_of ? `${voice.name} → ${voice.alias_of}` : voice.name);
  fill($("voice"), voices.map((voice) => [voice.id, label(voice)]), chosen ?? "ryan");
  const none = kind() === "base" && model() && !voices.length ? "No voice is stored yet: record one below." : "";
  $("hint").textContent = model() ? none : LACKING[kind()];
  $("hint").hidden = !$("hint").textContent;
  $("forget").disabled = !voices.length;
}

async function status() {
  try {
    const health = await json("/health");
    $("server").textContent = `${health.status}, on ${health.backend}`;
    $("load").textContent = `${health.active_requests} running, ${health.queued_requests} waiting`;
  } catch {
    $("server").textContent = "not to be reached";
    $("load").textContent = "";
  }
}

// One event of the stream at a time.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    for (let at; (at = held.indexOf("\n\n")) >= 0; held = held.slice(at + 2)) {
      const data = held.slice(0, at).split("\n").filter((line) => line.startsWith("data: "));
      if (data.length) yield JSON.parse(data.map((line) => line.slice(6)).join("\n"));
    }
  }
}

function wanted() {
  const given = (id) => $(id).value.trim() || null;
  return {
    model: $("model").value, input: $("text").value, language: given("language"),
    voice: kind() === "voice_design" ? null : given("voice"),
    instructions: { custom_voice: given("manner"), base: null, voice_design: given("description") }[kind()],
    speed: Number($("speed").value) || 1, seed: $("seed").value === "" ? null : Number($("seed").value),
    response_format: "pcm", stream_format: "sse", timeline: true,
  };
}

async function speak() {
  stop();
  for (const dd of document.querySelectorAll("#figures dd")) dd.textContent = "–";
  timeline.clear();
  const player = new Player(), abort = new AbortController();
  const mine = (running = { player, abort });
  $("stop").disabled = false;
  $("save").hidden = true;
  await player.ready();
  const begun = performance.now(), took = () => (performance.now() - begun) / 1000;
  const watch = setInterval(status, 500);
  try {
    const headers = { "Content-Type": "application/json" };
    const reply = await ask("/v1/audio/speech", { method: "POST", headers, body: JSON.stringify(wanted()), signal: abort.signal });
    status();
    for await (const event of events(reply)) {
      event.timeline?.forEach((one) => timeline.stage(one));
      if (event.type === "speech.audio.delta") {
        const arrived = took(), samples = samplesOf(event.audio);
        if (!player.pieces.length) $("ttfa").textContent = ms(arrived);
        timeline.piece(arrived, arrived + player.add(samples), samples.length / RATE, samples, RATE);
      } else if (event.type === "speech.audio.done") show(event);
      else throw new Error(event.error.message);
      timeline.draw();
    }
    $("underrun").textContent = ms(player.underrun);
    URL.revokeObjectURL($("save").href);
    $("save").href = URL.createObjectURL(player.wav());
    $("save").hidden = false;
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    $("ending").textContent = "stopped";
  } finally {
    clearInterval(watch);
    if (running === mine) $("stop").disabled = true;
    status();
  }
}

function show({ timing, seed, finish_reason }) {
  $("server-ttfa").textContent = ms(timing.ttfa_s);
  $("audible").textContent = ms(timing.ttfa_audible_s);
  $("rtf").textContent = timing.rtf == null ? "–" : timing.rtf.toFixed(2);
  $("frames").textContent = timing.frames;
  $("queued").textContent = ms(timing.queue_s);
  $("used-seed").textContent = seed;
  $("ending").textContent = finish_reason;
  timeline.stages = timing.stages;
}

function stop() {
  running?.abort.abort();
  running?.player.stop();
  running = null;
}

function take(blob) {
  sample = blob;
  URL.revokeObjectURL($("preview").src);
  $("preview").src = URL.createObjectURL(blob);
  $("preview").hidden = false;
  $("store").disabled = false;
}

async function toggleRecording() {
  if (recording) return recording.stop();
  recording = await record((level, seconds) => {
    $("level").value = level;
    $("record").textContent = `Stop (${seconds.toFixed(1)} s)`;
  });
  $("level").hidden = false;
  take(await recording.done);
  recording = null;
  $("file").value = "";
  $("record").textContent = "Record again";
  $("level").hidden = true;
}

async function store() {
  const form = new FormData(), name = $("name").value.trim();
  form.append("audio_sample", sample, "recording");
  for (const [field, id] of [["name", "name"], ["ref_text", "transcript"], ["consent", "consent"]]) form.append(field, $(id).value.trim());
  const made = await json("/v1/audio/voices", { method: "POST", body: form });
  $("stored").textContent = `Stored ${made.name}, ${made.seconds.toFixed(1)} s.`;
  document.querySelector("[name=kind][value=base]").checked = true;
  await chooseKind();
  await chooseModel(name);
}

async function forget() {
  await ask(`/v1/audio/voices/${encodeURIComponent($("voice").value)}`, { method: "DELETE" });
  await chooseModel();
}

$("form").addEventListener("submit", attempt(speak));
$("text").addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit(); });
$("stop").addEventListener("click", stop);
$("kinds").addEventListener("change", attempt(chooseKind));
$("model").addEventListener("change", attempt(() => chooseModel()));
$("record").addEventListener("click", attempt(toggleRecording));
$("file").addEventListener("change", () => $("file").files[0] && take($("file").files[0]));
$("voice-form").addEventListener("submit", attempt(store));
$("forget").addEventListener("click", attempt(forget));
attempt(load)();
status();
setInterval(() => document.hidden || running || status(), 5000);
