namespace mlx::core::cu {
// A causal convolution or product of many rows, which arithmetic bounds: 8 TM rows of 4 TN columns for a block. Each of its
// 8 warps sums the whole tile over its share of K, every eighth four channels and all taps of them, without waiting for
// the others. A lane has rows lane % 8 + 8 i and TN columns. w is [taps, C, N]. MOST is the largest `past`.
//
// A step is one tap of four channels. What it needs has been copied into shared memory AHEAD steps before: its 4 rows of
// w, and with the first tap the rows of x that all taps see, which are kept for as many fours as there is room for.
template <int TM, int TN>
__device__ void codec_tiles(
    float* shared, int block, const Window& in, const float* w, const Finish& finish, int T, int taps, int dilation) {
  constexpr int BM = 8 * TM, BN = 4 * TN, AHEAD = 3, STAGES = AHEAD + 1, PART = BN + 4, STAGE = 4 * TN * 16;
  constexpr int ROOM = 2 * (BM + MOST) > STAGES * BM ? 2 * (BM + MOST) : STAGES * BM;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane % 8, g = lane / 8;
  const int N = finish.N, C = in.C, tiles = (T + BM - 1) / BM;
  const int first = block % tiles * BM, column = block / tiles * BN;
  const int rows = BM + in.past, valid = min(BM, T - first) + in.past;
  // Of each warp: ROOM rows of four channels, STAGES times 4 rows of w. Afterwards all have their sums there.
  constexpr int END = STAGES * STAGE, LAST = ROOM * 16;
  static_assert(8 * (LAST + END) <= SHARED && 8 * 8 * PART * 4 <= SHARED);
  const Place seen = place(shared) + warp * (LAST + END), factors = seen + LAST;
  const int turn = 16 * rows;

  // Where the copies are: TN lanes for each of 4 rows of w.
  const bool copies = lane < 4 * TN && column + lane % TN * 4 < N;
  const float* next_w = w + (4 * warp + lane / TN) * N + column + lane % TN * 4;
  const Place to_w = factors + 16 * lane, to = seen + 16 * lane;
  int next_c = 4 * warp, next_tap = 0, next_rows = 0, next_stage = 0;
  auto begin = [&] {
    if (next_c < C) {
      if (copies) copy(to_w + next_stage, next_w);
      if (next_tap == 0) {
        #pragma unroll
        for (int i = 0; i < BM + MOST; i += 32)
          if (lane + i < valid) copy(to + next_rows + 16 * i, in.row(first + lane + i) + next_c);
        next_rows = next_rows + 2 * turn > LAST ? 0 : next_rows + turn;
      }
      next_stage = next_stage + STAGE == END ? 0 : next_stage + STAGE;
      next_w += C * N;
      if (++next_tap == taps) {
        next_tap = 0;
        next_c += 32;
        next_w += (32 - taps * C) * N;
      }
    }
    end_group();
  };

  float sum[TM][TN] = {};
  for (int i = 0; i < AHEAD; ++i) begin();
  int rows_at = 0, stage = 0;
  for (int c = 4 * warp; c < C; c += 32) {
    Place from = seen + rows_at + 16 * r;
    for (int tap = 0; tap < taps; ++tap) {
      wait_groups<AHEAD - 1>();
      __syncwarp();
      Pack<float, 4> a[TM];
      #pragma unroll
      for (int i = 0; i < TM; ++i) a[i] = load_shared<4>(from + 128 * i);
      begin();
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        float b[TN];
        #pragma unroll
        for (int n = 0; n < TN; n += 4) {
          const auto four = load_shared<4>(factors + stage + 16 * k * TN + 4 * (g * TN + n));
          #pragma unroll
          for (int m = 0; m < 4; ++m) b[n + m] = four.at[m];
        }
        #pragma unroll
        for (int i = 0; i < TM; ++i) {
          #pragma unroll
          for (int n = 0; n < TN; ++n) sum[i][n] = fmaf(a[i].at[k], b[n], sum[i][n]);
        }
      }
      stage = stage + STAGE == END ? 0 : stage + STAGE;
      from += 16 * dilation;
    }
    rows_at = rows_at + 2 * turn > LAST ? 0 : rows_at + turn;
  }
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < TM; ++i) {
    #pragma unroll
    for (int n = 0; n < TN; n += 4) {
      Pack<float, 4> four;
      #pragma unroll
      for (int m = 0; m < 4; ++m) four.at[m] = sum[i][n + m];
      *reinterpret_cast<Pack<float, 4>*>(shared + (warp * 8 + r) * PART + g * TN + n) = four;
    }
    __syncthreads();
    const int at = threadIdx.x / BN, n = threadIdx.x % BN;
    if (at < 8 && first + 8 * i + at < T && column + n < N) {
      float value = 0;
      for (int v = 0; v < 8; ++v) value += shared[(v * 8 + at) * PART + n];
      finish(first + 8 * i + at, column + n, value);
    }
    __syncthreads();
  }
}
}
