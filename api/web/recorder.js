// A recording of the microphone, as it is: without what browsers do to make calls clearer.
const LONGEST_S = 30;

export async function record(level) {
  if (!navigator.mediaDevices) throw new Error("Browsers record on https pages and on localhost only: choose a file instead.");
  const plain = { echoCancellation: false, noiseSuppression: false, autoGainControl: false, channelCount: 1 };
  const stream = await navigator.mediaDevices.getUserMedia({ audio: plain });
  const recorder = new MediaRecorder(stream, { audioBitsPerSecond: 192000 }), pieces = [];
  const context = new AudioContext(), analyser = context.createAnalyser();
  context.createMediaStreamSource(stream).connect(analyser);
  const samples = new Float32Array(analyser.fftSize);
  const begun = performance.now();
  const watch = () => {
    if (recorder.state !== "recording") return;
    analyser.getFloatTimeDomainData(samples);
    const seconds = (performance.now() - begun) / 1000;
    level(samples.reduce((most, one) => Math.max(most, Math.abs(one)), 0), seconds);
    if (seconds >= LONGEST_S) recorder.stop(); else requestAnimationFrame(watch);
  };
  const done = new Promise((resolve) => {
    recorder.ondataavailable = ({ data }) => pieces.push(data);
    recorder.onstop = () => {
      for (const track of stream.getTracks()) track.stop();
      context.close();
      resolve(new Blob(pieces, { type: recorder.mimeType }));
    };
  });
  recorder.start();
  watch();
  return { done, stop: () => recorder.state === "recording" && recorder.stop() };
}
