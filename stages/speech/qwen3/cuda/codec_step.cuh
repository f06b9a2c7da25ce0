namespace mlx::core::cu {
template <int TM, int TN>
APART __device__ void codec_rows(float* shared, Phase phase, Window in, const float* w, Finish finish) {
  for (int block = blockIdx.x; block < phase.blocks; block += gridDim.x)
    codec_rows<TM, TN>(
        shared, block, in, w, finish, phase.T, phase.K, phase.dilation, phase.bent == NORMED || phase.bent == GATED,
        phase.bent == GATED);
}

template <int TN>
__device__ void codec_rows(float* shared, const Phase& phase, const Window& in, const float* w, const Finish& finish) {
  if (phase.T == 1) codec_rows<1, TN>(shared, phase, in, w, finish);
  else if (phase.T == 2) codec_rows<2, TN>(shared, phase, in, w, finish);
  else if (phase.T <= 4) codec_rows<4, TN>(shared, phase, in, w, finish);
  else codec_rows<8, TN>(shared, phase, in, w, finish);
}

template <int TM, int TN>
APART __device__ void codec_tiles(float* shared, Phase phase, Window in, const float* w, Finish finish) {
  for (int block = blockIdx.x; block < phase.blocks; block += gridDim.x)
    codec_tiles<TM, TN>(shared, block, in, w, finish, phase.T, phase.K / phase.C, phase.dilation);
}

// One layer of a step, by all blocks. Its past, or an attention's cache, is `old`, and `now` for the next step.
__device__ void codec_phase(
    float* shared, const Phase& phase, const float* parameters, float* room, const float* turn, int position,
    const float* old, float* now, float* pcm) {
  const Window in{old, room + phase.x, phase.past, phase.C};
  const Finish finish(phase, parameters, room);
  const float* w = parameters + phase.w;
  if (phase.past) keep(in, phase.T, now);
  switch (phase.kind) {
    case FEW:
      if (phase.size == 2) codec_rows<2>(shared, phase, in, w, finish);
      else codec_rows<4>(shared, phase, in, w, finish);
      break;
    case MANY:
      if (phase.size == 0) codec_tiles<8, 8>(shared, phase, in, w, finish);
      else if (phase.size == 1) codec_tiles<8, 4>(shared, phase, in, w, finish);
      else if (phase.size == 2) codec_tiles<4, 4>(shared, phase, in, w, finish);
      else codec_tiles<2, 4>(shared, phase, in, w, finish);
      break;
    case ATTEND:
      for (int block = blockIdx.x; block < phase.blocks; block += gridDim.x)
        codec_attend(shared, block, in.x, turn, old, position, phase.T, room + phase.y, now);
      break;
    case MIX:
      for (int t = blockIdx.x; t < phase.blocks; t += gridDim.x)
        codec_mix(shared, t, in, w, room + phase.y, phase.K);
      break;
    case TO_PCM:
      for (int block = blockIdx.x; block < phase.blocks; block += gridDim.x)
        codec_last(block, in, w, pcm, phase.T, phase.K / phase.C);
      break;
  }
}

// Brings a layer's weights near while blocks meet or wait: as much of them as leaves room for others, line by line.
__device__ inline void codec_expect(const Phase& phase, const float* parameters) {
  constexpr int LINE = 32, MOST_LINES = 1 << 17;
  if (phase.kind != FEW && phase.kind != MANY) return;
  const int lines = min(phase.K * phase.N / LINE, MOST_LINES);
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < lines; i += gridDim.x * blockDim.x)
    fetch(parameters + phase.w + i * LINE);
}
}
