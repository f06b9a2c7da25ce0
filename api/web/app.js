"use strict";
// Speaks through /v1/audio/speech as events and plays each piece as it comes.

const $ = (id) => document.getElementById(id);
const RATE = 24000;
let context = null;
let running = null; // { abort, sources }

const headers = () => {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
};
const ms = (seconds) => (seconds == null ? "–" : `${Math.round(seconds * 1000)} ms`);
const problem = (text) => { $("problem").textContent = text || ""; $("problem").hidden = !text; };

function fill(select, names, chosen) {
  select.replaceChildren(...names.map(([value, label]) => new Option(label, value, false, value === chosen)));
}

async function load() {
  const models = (await (await fetch("/v1/models")).json()).data.filter((model) => model.family === "speech");
  fill($("model"), models.map((model) => [model.id, `${model.id} (${model.kind}, ${model.size})`]));
  const choose = async () => {
    const model = models.find((one) => one.id === $("model").value);
    if (!model) return;
    fill($("language"), [["", "as the text"], ...model.languages.filter((name) => name !== "auto").map((name) => [name, name])]);
    const { voices } = await (await fetch(`/v1/audio/voices?model=${encodeURIComponent(model.id)}`)).json();
    fill($("voice"), voices.map((voice) => [voice.id, voice.alias_of ? `${voice.name} → ${voice.alias_of}` : voice.name]), "ryan");
  };
  $("model").addEventListener("change", choose);
  await choose();
  await status();
}

async function status() {
  const health = await (await fetch("/health")).json();
  $("server").textContent = `${health.status}, on ${health.backend}`;
  $("load").textContent = `${health.active_requests} running, ${health.queued_requests} waiting`;
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

function samplesOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const whole = new Int16Array(bytes.buffer, 0, bytes.length >> 1);
  return Float32Array.from(whole, (sample) => sample / 32768);
}

// Plays pieces one after the other; when one comes late, the gap is counted.
class Player {
  constructor() {
    context ??= new AudioContext({ sampleRate: RATE });
    this.next = 0;
    this.underrun = 0;
    this.pieces = [];
    this.sources = new Set();
  }

  add(samples, arrived) {
    const now = context.currentTime;
    if (!this.next) this.next = now + 0.01;
    else if (this.next < now) { this.underrun += now - this.next; this.next = now; }
    const buffer = context.createBuffer(1, samples.length, RATE);
    buffer.copyToChannel(samples, 0);
    const source = context.createBufferSource();
    source.buffer = buffer;
    source.connect(context.destination);
    source.start(this.next);
    source.onended = () => this.sources.delete(source);
    this.sources.add(source);
    this.pieces.push({ arrived, plays: arrived + (this.next - now), lasts: buffer.duration, samples });
    this.next += buffer.duration;
  }

  stop() { for (const source of this.sources) source.stop(); }
}

function draw(pieces, took) {
  const canvas = $("timeline"), paint = canvas.getContext("2d"), style = getComputedStyle(document.body);
  const last = pieces.at(-1);
  const span = Math.max(took, last ? last.plays + last.lasts : 0, 0.5);
  const x = (seconds) => 80 + (seconds / span) * (canvas.width - 90);
  paint.clearRect(0, 0, canvas.width, canvas.height);
  paint.font = "12px system-ui, sans-serif";
  paint.fillStyle = style.getPropertyValue("--soft");
  ["arrives", "plays", "sound"].forEach((name, row) => paint.fillText(name, 8, 30 + row * 38));
  for (let tick = 0, step = span > 12 ? 2 : span > 4 ? 1 : 0.25; tick <= span; tick += step) {
    paint.fillRect(x(tick), 132, 1, 5);
    paint.fillText(`${tick.toFixed(step < 1 ? 2 : 0)} s`, x(tick) - 8, 148);
  }
  paint.fillStyle = style.getPropertyValue("--mark");
  for (const piece of pieces) {
    paint.fillRect(x(piece.arrived), 14, Math.max(2, x(piece.lasts) - x(0) - 1), 24);
    paint.fillRect(x(piece.plays), 52, Math.max(1, x(piece.lasts) - x(0) - 1), 24);
    const step = Math.max(1, Math.floor(piece.samples.length / 40));
    for (let i = 0; i < piece.samples.length; i += step) {
      const height = Math.min(18, Math.abs(piece.samples[i]) * 40);
      paint.fillRect(x(piece.plays + i / RATE), 108 - height, 1, 2 * height + 1);
    }
  }
}

function wav(pieces) {
  const total = pieces.reduce((sum, piece) => sum + piece.samples.length, 0);
  const view = new DataView(new ArrayBuffer(44 + 2 * total));
  const text = (at, letters) => [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  text(0, "RIFF"); view.setUint32(4, 36 + 2 * total, true); text(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, RATE, true); view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true); view.setUint16(34, 16, true); text(36, "data"); view.setUint32(40, 2 * total, true);
  let at = 44;
  for (const { samples } of pieces) for (const sample of samples) { view.setInt16(at, sample * 32768, true); at += 2; }
  return new Blob([view], { type: "audio/wav" });
}

async function speak() {
  stop();
  problem("");
  for (const id of ["ttfa", "server-ttfa", "audible", "rtf", "frames", "underrun", "queued", "used-seed", "ending"]) $(id).textContent = "–";
  const player = new Player(), abort = new AbortController();
  running = { player, abort };
  $("stop").disabled = false;
  await context.resume();
  const begun = performance.now(), took = () => (performance.now() - begun) / 1000;
  try {
    const body = {
      model: $("model").value, voice: $("voice").value || null, input: $("text").value,
      language: $("language").value || null, instructions: $("instructions").value || null,
      speed: Number($("speed").value) || 1, seed: $("seed").value === "" ? null : Number($("seed").value),
      response_format: "pcm", stream_format: "sse",
    };
    const response = await fetch("/v1/audio/speech", { method: "POST", headers: headers(), body: JSON.stringify(body), signal: abort.signal });
    if (!response.ok) throw new Error((await response.json()).error.message);
    status();
    for await (const event of events(response)) {
      if (event.type === "speech.audio.delta") {
        if (!player.pieces.length) $("ttfa").textContent = ms(took());
        player.add(samplesOf(event.audio), took());
        draw(player.pieces, took());
      } else if (event.type === "speech.audio.done") {
        const { timing } = event;
        $("server-ttfa").textContent = ms(timing.ttfa_s);
        $("audible").textContent = ms(timing.ttfa_audible_s);
        $("rtf").textContent = timing.rtf == null ? "–" : timing.rtf.toFixed(2);
        $("frames").textContent = timing.frames;
        $("queued").textContent = ms(timing.queue_s);
        $("used-seed").textContent = event.seed;
        $("ending").textContent = event.finish_reason;
      } else if (event.type === "speech.audio.error") throw new Error(event.error.message);
    }
    $("underrun").textContent = ms(player.underrun);
    URL.revokeObjectURL($("save").href);
    $("save").href = URL.createObjectURL(wav(player.pieces));
    $("save").hidden = false;
  } catch (error) {
    if (error.name !== "AbortError") problem(error.message);
    else $("ending").textContent = "stopped";
  }
  $("stop").disabled = true;
  status();
}

function stop() {
  running?.abort.abort();
  running?.player.stop();
  running = null;
}

$("form").addEventListener("submit", (event) => { event.preventDefault(); speak(); });
$("stop").addEventListener("click", stop);
load().catch((error) => problem(error.message));
