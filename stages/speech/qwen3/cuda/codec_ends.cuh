namespace mlx::core::cu {
// One block for a row of C <= MOST channels: depthwise convolution, then layer norm. w [taps, C].
template <int MOST>
__device__ void codec_mix(
    const Window& in, const float* w, const float* bias, const float* norm, const float* shift, float* out, float* kept,
    int T, int taps) {
  __shared__ Pack<float, 4> mixed[MOST / 4];
  const int t = blockIdx.x, C = in.C;
  float sum = 0, square = 0;
  for (int c = 4 * threadIdx.x; c < C; c += 1024) {
    auto made = load<4>(bias + c);
    #pragma unroll 7
    for (int tap = 0; tap < taps; ++tap) {
      const auto x = load<4>(in.row(t + tap) + c), factor = load<4>(w + tap * C + c);
      for (int j = 0; j < 4; ++j) made.at[j] = fmaf(x.at[j], factor.at[j], made.at[j]);
    }
    mixed[c / 4] = made;
    for (int j = 0; j < 4; ++j) sum += made.at[j];
  }
  const float mean = block_total(sum) / C;
  for (int c = 4 * threadIdx.x; c < C; c += 1024)
    for (int j = 0; j < 4; ++j) square = fmaf(mixed[c / 4].at[j] - mean, mixed[c / 4].at[j] - mean, square);
  const float scale = rsqrtf(block_total(square) / C + 1e-6f);
  for (int c = 4 * threadIdx.x; c < C; c += 1024) {
    auto row = mixed[c / 4];
    const auto factor = load<4>(norm + c), offset = load<4>(shift + c);
    for (int j = 0; j < 4; ++j) row.at[j] = fmaf((row.at[j] - mean) * scale, factor.at[j], offset.at[j]);
    *reinterpret_cast<Pack<float, 4>*>(out + size_t(t) * C + c) = row;
  }
  keep(in, T, kept, T);
}

// The last convolution, to one channel: EACH samples for a warp, within ±1. w [taps * C].
template <int EACH>
__device__ void codec_last(const Window& in, const float* w, const float* bias, float* pcm, float* kept, int T, int taps) {
  const int lane = threadIdx.x % 32, first = (blockIdx.x * 8 + threadIdx.x / 32) * EACH, C = in.C;
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
    const float value = summed(sum[i]) + bias[0];
    if (lane == 0 && first + i < T) pcm[first + i] = fminf(fmaxf(value, -1.0f), 1.0f);
  }
  keep(in, T, kept, (T + 8 * EACH - 1) / (8 * EACH));
}
}
