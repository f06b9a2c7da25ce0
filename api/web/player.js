// Plays pieces of 16-bit mono PCM one after the other through WebAudio; when one comes late, the gap is counted.
export const RATE = 24000;
let context = null;

export class Player {
  constructor() {
    context ??= new AudioContext({ sampleRate: RATE });
    this.next = 0;
    this.underrun = 0;
    this.pieces = [];
    this.sources = new Set();
  }

  ready() { return context.resume(); }

  // Seconds from now until the piece is heard.
  add(samples) {
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
    this.pieces.push(samples);
    const wait = this.next - now;
    this.next += buffer.duration;
    return wait;
  }

  stop() { for (const source of this.sources) source.stop(); }

  wav() {
    const total = this.pieces.reduce((sum, piece) => sum + piece.length, 0);
    const view = new DataView(new ArrayBuffer(44 + 2 * total));
    const text = (at, letters) => [...letters].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
    text(0, "RIFF"); view.setUint32(4, 36 + 2 * total, true); text(8, "WAVEfmt ");
    view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
    view.setUint32(24, RATE, true); view.setUint32(28, 2 * RATE, true);
    view.setUint16(32, 2, true); view.setUint16(34, 16, true); text(36, "data"); view.setUint32(40, 2 * total, true);
    let at = 44;
    for (const piece of this.pieces) for (const sample of piece) { view.setInt16(at, sample * 32768, true); at += 2; }
    return new Blob([view], { type: "audio/wav" });
  }
}

export function samplesOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  return Float32Array.from(new Int16Array(bytes.buffer, 0, bytes.length >> 1), (sample) => sample / 32768);
}
