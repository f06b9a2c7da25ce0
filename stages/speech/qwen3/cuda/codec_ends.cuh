namespace mlx::core::cu {
// One block for a row of channels: depthwise convolution, then layer norm. w [taps + 3, C]: the taps', then bias, the
// norm's weight and bias.
__device__ void codec_mix(float* shared, int t, const Window& in, const float* w, float* out, int taps) {
  Pack<float, 4>* mixed = reinterpret_cast<Pack<float, 4>*>(shared + 8);
  const int C = in.C;
  float sum = 0, square = 0;
  for (int c = 4 * threadIdx.x; c < C; c += 1024) {
    auto made = load<4>(w + taps * C + c);
    #pragma unroll 7
    for (int tap = 0; tap < taps; ++tap) {
      const auto x = load<4>(in.row(t + tap) + c), factor = load<4>(w + tap * C + c);
      for (int j = 0; j < 4; ++j) made.at[j] = fmaf(x.at[j], factor.at[j], made.at[j]);
    }
    mixed[c / 4] = made;
    for (int j = 0; j < 4; ++j) sum += made.at[j];
  }
  const float mean = block_total(sum, shared) / C;
  for (int c = 4 * threadIdx.x; c < C; c += 1024)
    for (int j = 0; j < 4; ++j) square = fmaf(mixed[c / 4].at[j] - mean, mixed[c / 4].at[j] - mean, square);
  const float scale = rsqrtf(block_total(square, shared) / C + 1e-6f);
  for (int c = 4 * threadIdx.x; c < C; c += 1024) {
    auto row = mixed[c / 4];
    const auto factor = load<4>(w + (taps + 1) * C + c), offset = load<4>(w + (taps + 2) * C + c);
    for (int j = 0; j < 4; ++j) row.at[j] = fmaf((row.at[j] - mean) * scale, factor.at[j], offset.at[j]);
    *reinterpret_cast<Pack<float, 4>*>(out + size_t(t) * C + c) = row;
  }
}

// The last convolution, to one channel: EACH samples for a warp, within ±1. w [taps * C], then the bias.
__device__ void codec_last(int block, const Window& in, const float* w, float* pcm, int T, int taps) {
  constexpr int EACH = LAST_EACH;
  const int lane = threadIdx.x % 32, first = (block * 8 + threadIdx.x / 32) * EACH, C = in.C;
  float sum[EACH] = {};
  for (int tap = 0; tap < taps; ++tap) {
    for (int c = lane; c < C; c += 32) {
      const float factor = w[tap * C + c];
      #pragma unroll
      for (int i = 0; i < EACH; ++i) sum[i] = fmaf(in.row(min(first + i, T - 1) + tap)[c], factor, sum[i]);
    }
  }
  #pragma unroll
  for (int i = 0; i < EACH; ++i) {
    const float value = summed(sum[i]) + w[taps * C];
    if (lane == 0 && first + i < T) pcm[first + i] = fminf(fmaxf(value, -1.0f), 1.0f);
  }
}
}
