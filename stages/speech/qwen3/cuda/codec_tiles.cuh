namespace mlx::core::cu {
// A causal convolution or product of many rows, which arithmetic bounds: 8 TM rows of 4 TN columns for a block. Each of its
// 8 warps sums the whole tile over its share of K, every eighth four channels and all taps of them: the rows that the taps
// see are put into shared memory once. A lane has rows lane % 8 + 8 i and TN columns. w is [taps, C, N].
template <int TM, int TN, int MOST>
__device__ void codec_tiles(
    const Window& in, const float* w, const Finish& finish, float* kept, int T, int taps, int dilation) {
  constexpr int BM = 8 * TM, BN = 4 * TN, ROWS = BM + MOST, LOADS = (ROWS + 31) / 32, PART = BN + 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane % 8, g = lane / 8;
  const int N = finish.N, C = in.C, tiles = (T + BM - 1) / BM, rows = min(BM, T - int(blockIdx.x) % tiles * BM) + in.past;
  const int first = blockIdx.x % tiles * BM, column = blockIdx.x / tiles * BN;
  // A lane's part of 4 rows of w: BN / 4 lanes for each row.
  const int w_row = lane / TN, w_column = column + lane % TN * 4;
  const bool loads = w_row < 4 && w_column < N;
  __shared__ Pack<float, 4> seen[8][2][ROWS], factors[8][2][4][TN];
  Pack<float, 4> next[LOADS] = {}, next_w = {};
  auto fetch = [&](int c) {
    #pragma unroll
    for (int i = 0; i < LOADS; ++i)
      if (lane + 32 * i < rows) next[i] = load<4>(in.row(first + lane + 32 * i) + c);
  };
  auto fetch_w = [&](int c, int tap) {
    if (loads) next_w = load<4>(w + (size_t(tap) * C + c + w_row) * N + w_column);
  };
  auto store = [&](int to) {
    #pragma unroll
    for (int i = 0; i < LOADS; ++i)
      if (lane + 32 * i < ROWS) seen[warp][to][lane + 32 * i] = next[i];
  };
  auto store_w = [&](int to) {
    if (w_row < 4) factors[warp][to][w_row][lane % TN] = next_w;
  };
  float sum[TM][TN] = {};
  int c = 4 * warp, tap = 0, now = 0, now_w = 0;
  if (c < C) {
    fetch(c);
    fetch_w(c, 0);
    store(0);
    store_w(0);
  }
  __syncwarp();
  while (c < C) {
    const bool last = tap + 1 == taps;
    const int next_c = last ? c + 32 : c, next_tap = last ? 0 : tap + 1;
    if (next_c < C) {
      fetch_w(next_c, next_tap);
      if (last) fetch(next_c);
    }
    Pack<float, 4> a[TM];
    #pragma unroll
    for (int i = 0; i < TM; ++i) a[i] = seen[warp][now][r + 8 * i + tap * dilation];
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
      float b[TN];
      #pragma unroll
      for (int n = 0; n < TN; n += 4) {
        const auto four = factors[warp][now_w][k][(g * TN + n) / 4];
        #pragma unroll
        for (int m = 0; m < 4; ++m) b[n + m] = four.at[m];
      }
      #pragma unroll
      for (int i = 0; i < TM; ++i) {
        #pragma unroll
        for (int n = 0; n < TN; ++n) sum[i][n] = fmaf(a[i].at[k], b[n], sum[i][n]);
      }
    }
    if (next_c < C) {
      now_w ^= 1;
      store_w(now_w);
      if (last) {
        now ^= 1;
        store(now);
      }
    }
    __syncwarp();
    c = next_c;
    tap = next_tap;
  }
  keep(in, T, kept, tiles * ((N + BN - 1) / BN));
  __shared__ float parts[8][8 * PART];
  #pragma unroll
  for (int i = 0; i < TM; ++i) {
    #pragma unroll
    for (int n = 0; n < TN; n += 4) {
      Pack<float, 4> four;
      #pragma unroll
      for (int m = 0; m < 4; ++m) four.at[m] = sum[i][n + m];
      *reinterpret_cast<Pack<float, 4>*>(&parts[warp][r * PART + g * TN + n]) = four;
    }
    __syncthreads();
    const int row = threadIdx.x / BN, n = threadIdx.x % BN, at = first + 8 * i + row;
    if (row < 8 && at < T && column + n < N) {
      float value = 0;
      for (int v = 0; v < 8; ++v) value += parts[v][row * PART + n];
      finish(at, column + n, value);
    }
    __syncthreads();
  }
}
}
