namespace mlx::core::cu {
// A causal convolution or product of many rows, which arithmetic bounds: 8 TM rows of 4 TN columns for a block. Each of its
// 8 warps sums the whole tile over its share of K, every eighth four channels and all taps of them, without waiting for
// the others. A lane has rows lane % 8 + 8 i and TN columns. w is [taps, C, N]. MOST_PAST is the largest `past`.
//
// A turn is up to TAPS taps of four channels. What it needs has been copied into shared memory AHEAD turns before: 4 rows
// of w for each tap, and with the first tap the rows of x that all taps see, which are kept for as many fours as there is
// room for: for all that are under way, as a layer with a long past has many taps.
template <int TM, int TN>
__device__ void codec_tiles(
    float* shared, int block, const Window& in, const float* w, const Finish& finish, int T, int taps, int dilation) {
  constexpr int BM = 8 * TM, BN = 4 * TN, PART = BN + 4;
  constexpr int TAPS = TM * TN <= 16 ? 4 : 2, STAGES = TM * TN <= 32 ? 3 : 2, AHEAD = STAGES - 1;
  constexpr int ROOM = 2 * (BM + MOST_PAST) > STAGES * BM ? 2 * (BM + MOST_PAST) : STAGES * BM;
  constexpr int TAP = 4 * TN * 16, STAGE = TAPS * TAP, END = STAGES * STAGE, LAST = ROOM * 16;  // bytes
  static_assert(8 * (LAST + END) <= SHARED && 8 * 8 * PART * 4 <= SHARED);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane % 8, g = lane / 8;
  const int N = finish.N, C = in.C, tiles = (T + BM - 1) / BM;
  const int first = block % tiles * BM, column = block / tiles * BN;
  const int rows = BM + in.past, valid = min(BM, T - first) + in.past, turn = 16 * rows;
  // Of each warp: ROOM rows of four channels, then the rows of w. Afterwards all have their sums there.
  const Place seen = place(shared) + warp * (LAST + END), factors = seen + LAST;

  // Copies: TN lanes for each of 4 rows of w.
  const bool copies = lane < 4 * TN && column + lane % TN * 4 < N;
  const float* next_w = w + (4 * warp + lane / TN) * N + column + lane % TN * 4;
  const Place to_w = factors + 16 * lane, to = seen + 16 * lane;
  int next_c = 4 * warp, next_tap = 0, next_rows = 0, next_stage = 0;
  auto begin = [&] {
    if (next_c < C) {
      #pragma unroll
      for (int i = 0; i < TAPS; ++i)
        if (copies && next_tap + i < taps) copy(to_w + next_stage + i * TAP, next_w + i * C * N);
      if (next_tap == 0) {
        #pragma unroll
        for (int i = 0; i < BM + MOST_PAST; i += 32)
          if (lane + i < valid) copy(to + next_rows + 16 * i, in.row(first + lane + i) + next_c);
        next_rows = next_rows + 2 * turn > LAST ? 0 : next_rows + turn;
      }
      next_stage = next_stage + STAGE == END ? 0 : next_stage + STAGE;
      next_w += TAPS * C * N;
      next_tap += TAPS;
      if (next_tap >= taps) {
        next_w += (32 - next_tap * C) * N;
        next_tap = 0;
        next_c += 32;
      }
    }
    end_group();
  };

  float sum[TM][TN] = {};
  for (int i = 0; i < AHEAD; ++i) begin();
  int rows_at = 0, stage = 0;
  for (int c = 4 * warp; c < C; c += 32) {
    Place from = seen + rows_at + 16 * r;
    for (int tap = 0; tap < taps; tap += TAPS) {
      wait_groups<AHEAD - 1>();
      __syncwarp();
      begin();
      #pragma unroll
      for (int t = 0; t < TAPS; ++t) {
        if (tap + t == taps) break;
        Pack<float, 4> a[TM];
        #pragma unroll
        for (int i = 0; i < TM; ++i) a[i] = load_shared<4>(from + 128 * i);
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
          float b[TN];
          #pragma unroll
          for (int n = 0; n < TN; n += 4) {
            const auto four = load_shared<4>(factors + stage + t * TAP + 16 * k * TN + 4 * (g * TN + n));
            #pragma unroll
            for (int m = 0; m < 4; ++m) b[n + m] = four.at[m];
          }
          #pragma unroll
          for (int i = 0; i < TM; ++i) {
            #pragma unroll
            for (int n = 0; n < TN; ++n) sum[i][n] = fmaf(a[i].at[k], b[n], sum[i][n]);
          }
        }
        from += 16 * dilation;
      }
      stage = stage + STAGE == END ? 0 : stage + STAGE;
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
