namespace mlx::core::cu {
// A causal convolution or product of few rows, which the weights' way through memory bounds: TM rows of 4 TN columns for a
// block. Its lanes are 4 groups of TN columns by 8 shares of K, its warps 8 shares again; a share has 4 neighbouring k of
// every 256. w is [N / 16, K / 32, 4, 8, 16]: the j-th k of each of the 8 shares side by side, for lanes to load in a row.
// NORMED: of rms_norm(x), whose weight is in w. GATED: columns are pairs of gate and up, out is silu(gate) * up [T, N / 2].
template <int TM, int TN, bool NORMED, bool GATED>
__device__ void codec_rows_of(
    const Window& in, const float* w, const Finish& finish, float* kept, int T, int K, int dilation) {
  constexpr int BN = 4 * TN, AHEAD = TM * TN <= 8 ? 4 : TM * TN <= 16 ? 2 : 1;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, share = lane / 4;
  const int N = finish.N, C = in.C, tiles = (T + TM - 1) / TM;
  const int first = blockIdx.x % tiles * TM, column = blockIdx.x / tiles * BN;
  const float* from = w + size_t(column / 16) * K * 16 + share * 16 + column % 16 + lane % 4 * TN;
  float sum[TM][TN] = {}, square[TM] = {};
  #pragma unroll AHEAD
  for (int k = 32 * warp; k < K; k += 256) {
    Pack<float, TN> f[4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) f[j] = load<TN>(from + (size_t(k) * 4 + j * 32) * 4);
    const int at = k + 4 * share, tap = K == C ? 0 : at / C, c = at - tap * C;
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
      const auto x = load<4>(in.row(min(first + i, T - 1) + tap * dilation) + c);
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        #pragma unroll
        for (int n = 0; n < TN; ++n) sum[i][n] = fmaf(x.at[j], f[j].at[n], sum[i][n]);
        if (NORMED) square[i] = fmaf(x.at[j], x.at[j], square[i]);
      }
    }
  }
  __shared__ float parts[8][TM][BN], squares[8][TM];
  #pragma unroll
  for (int i = 0; i < TM; ++i) {
    for (int bit = 4; bit < 32; bit *= 2) {
      #pragma unroll
      for (int n = 0; n < TN; ++n) sum[i][n] += __shfl_xor_sync(0xffffffffu, sum[i][n], bit);
      if (NORMED) square[i] += __shfl_xor_sync(0xffffffffu, square[i], bit);
    }
    if (share == 0) {
      #pragma unroll
      for (int n = 0; n < TN; ++n) parts[warp][i][lane * TN + n] = sum[i][n];
      if (NORMED) squares[warp][i] = square[i];
    }
  }
  __syncthreads();
  keep(in, T, kept, tiles * N / BN);
  constexpr int EACH = GATED ? 2 : 1;
  const int i = threadIdx.x * EACH / BN, n = threadIdx.x * EACH % BN;
  if (i >= TM || first + i >= T) return;
  float scale = 1, value[EACH] = {};
  for (int v = 0; v < 8; ++v)
    for (int e = 0; e < EACH; ++e) value[e] += parts[v][i][n + e];
  if (NORMED) {
    float power = 0;
    for (int v = 0; v < 8; ++v) power += squares[v][i];
    scale = rsqrtf(power / K + EPS);
  }
  if (GATED) {
    const float gate = value[0] * scale, up = value[EACH - 1] * scale;
    finish.y[(size_t(first + i) * N + column + n) / 2] = gate / (1 + expf(-gate)) * up;
  } else {
    finish(first + i, column + n, value[0] * scale);
  }
}

template <int TN, bool NORMED, bool GATED>
__device__ void codec_rows(
    const Window& in, const float* w, const Finish& finish, float* kept, int T, int K, int dilation) {
  if (T == 1) codec_rows_of<1, TN, NORMED, GATED>(in, w, finish, kept, T, K, dilation);
  else if (T == 2) codec_rows_of<2, TN, NORMED, GATED>(in, w, finish, kept, T, K, dilation);
  else if (T <= 4) codec_rows_of<4, TN, NORMED, GATED>(in, w, finish, kept, T, K, dilation);
  else codec_rows_of<8, TN, NORMED, GATED>(in, w, finish, kept, T, K, dilation);
}
}
