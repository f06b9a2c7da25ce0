// Draws when each stage made each frame, when the audio arrived and when it plays. A frame has one colour in all rows.
const STAGES = ["prompt", "talker", "code_predictor", "codec_decoder", "encoder"];
const ROWS = [...STAGES.map((name) => name.replace("_", " ")), "arrives", "plays", "sound"];
const LEFT = 108, RIGHT = 12, ROW = 27, BAR = 17;
const color = (frame) => `hsl(${(frame * 47 + 212) % 360} 52% 55%)`;

export class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    new ResizeObserver(() => this.draw()).observe(canvas);
    this.clear();
  }

  clear() {
    this.bars = []; // { row, from, to, frame }
    this.sound = []; // { at, samples, rate }
    this.frames = 0; // that have arrived
    this.decoded = 0; // the frame that the decoder handed on last
    this.sent = {}; // when each stage last handed something on
    this.hidden = new Map(); // when the talker, and the predictor, handed on each frame
    this.codes = new Map();
    this.stages = null; // what each was busy, in seconds
    this.draw();
  }

  // What the server tells: a stage has handed a message on. Its work on that began when it got what it needs, and had
  // handed on what came before.
  stage({ stage, sent, frame, frames, at_s: at }) {
    const row = STAGES.indexOf(stage);
    const needed = {
      prompt: 0,
      talker: frame ? this.codes.get(frame - 1) : this.sent.prompt,
      code_predictor: this.hidden.get(frame),
      codec_decoder: this.codes.get(frame + frames - 1),
      encoder: this.sent.codec_decoder,
    }[stage];
    const shown = { prompt: "Prompt", talker: "Hidden", code_predictor: "Codes", codec_decoder: "Pcm", encoder: "Audio" }[stage];
    if (row < 0 || sent !== shown) return;
    if (stage === "talker") this.hidden.set(frame, at);
    if (stage === "code_predictor") this.codes.set(frame, at);
    const from = Math.max(needed ?? 0, this.sent[stage] ?? 0);
    if (stage === "codec_decoder") this.decoded = frame;
    this.bars.push({ row, from: Math.min(from, at), to: at, frame: frame ?? this.decoded });
    this.sent[stage] = at;
  }

  piece(arrived, plays, lasts, samples, rate) {
    const frame = Math.round(this.frames);
    this.frames += lasts / 0.08;
    this.bars.push({ row: 5, from: arrived, to: arrived, frame }, { row: 6, from: plays, to: plays + lasts, frame });
    this.sound.push({ at: plays, samples, rate });
  }

  draw() {
    const { canvas, bars } = this, scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight, style = getComputedStyle(canvas);
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    const paint = canvas.getContext("2d");
    paint.setTransform(scale, 0, 0, scale, 0, 0);
    paint.clearRect(0, 0, width, height);
    paint.font = "12px system-ui, sans-serif";
    const span = Math.max(0.5, ...bars.map((bar) => bar.to));
    const x = (seconds) => LEFT + (seconds / span) * (width - LEFT - RIGHT);
    const soft = style.getPropertyValue("--soft"), line = style.getPropertyValue("--line");
    const bottom = ROWS.length * ROW;
    const step = [0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30].find((one) => x(one) - LEFT > 55) ?? 60;
    for (let tick = 0; tick <= span + 1e-6; tick += step) {
      paint.fillStyle = line;
      paint.fillRect(x(tick), 0, 1, bottom + 4);
      paint.fillStyle = soft;
      paint.textAlign = "center";
      paint.fillText(`${+tick.toFixed(2)} s`, Math.min(Math.max(x(tick), LEFT + 8), width - RIGHT - 4), bottom + 17);
    }
    paint.textAlign = "left";
    ROWS.forEach((name, row) => {
      const busy = this.stages?.[STAGES[row]];
      paint.fillStyle = soft;
      paint.fillText(name, 0, row * ROW + (busy == null ? 16 : 11));
      if (busy != null) {
        paint.font = "10px system-ui, sans-serif";
        paint.fillText(busy < 0.01 ? `${(busy * 1000).toFixed(1)} ms` : `${Math.round(busy * 1000)} ms`, 0, row * ROW + 23);
        paint.font = "12px system-ui, sans-serif";
      }
    });
    for (const { row, from, to, frame } of bars) {
      paint.fillStyle = color(frame);
      paint.fillRect(x(from), row * ROW + 4, Math.max(1.5, x(to) - x(from) - 0.5), BAR);
    }
    paint.fillStyle = style.getPropertyValue("--mark");
    for (const { at, samples, rate } of this.sound) {
      const wide = x(at + samples.length / rate) - x(at), bins = Math.max(1, Math.floor(wide));
      for (let bin = 0; bin < bins; bin++) {
        let peak = 0;
        const end = Math.floor(((bin + 1) * samples.length) / bins);
        for (let i = Math.floor((bin * samples.length) / bins); i < end; i++) peak = Math.max(peak, Math.abs(samples[i]));
        const half = Math.min(ROW / 2 - 1, peak * 2 * ROW);
        paint.fillRect(x(at) + (bin * wide) / bins, 7.5 * ROW - half, 1, 2 * half + 0.5);
      }
    }
  }
}
