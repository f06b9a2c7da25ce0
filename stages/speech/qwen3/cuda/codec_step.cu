// The codec decoder's step: codes to vectors, and then a phase for each layer.
__shared__ Pack<float, 4> shared[SHARED / 16];
Grid grid(ticket, left);
const float* const olds[] = {OLDS};
float* const nows[] = {NOWS};
const int frames = codes_shape[1], groups = codes_shape[2], begin = position[0];
if (blockIdx.x == 0 && threadIdx.x == 0) *next = begin + frames;
const Phase* const all = reinterpret_cast<const Phase*>(phases);
const int count = phases_shape[0], ahead = 2;
for (int p = 0; p < min(ahead, count); ++p) codec_expect(all[p], parameters);
for (int t = blockIdx.x; t < frames; t += gridDim.x)
  codec_frame(
      t, tables, codes, position, frequencies, room, turn, groups, tables_shape[0] / groups, tables_shape[1],
      DIM / 2);
for (int p = 0; p < count; ++p) {
  const Phase phase = all[p];
  grid.meet();
  codec_phase(
      shared[0].at, phase, parameters, room, turn, begin, phase.tail < 0 ? nullptr : olds[phase.tail],
      phase.tail < 0 ? nullptr : nows[phase.tail], pcm);
  if (p + ahead < count) codec_expect(all[p + ahead], parameters);
}
