namespace mlx::core::cu {
// A causal convolution or product of few rows, which the weights' way through memory bounds: TM rows of 4 TN columns for a
// block. Its lanes are 4 groups of TN columns by 8 shares of K, its warps 8 shares again; a share has 4 neighbouring k of
// every 256. w is [N / 16, K / 32, 4, 8, 16]: the j-th k of each of the 8 shares side by side, for lanes to load in a row.
// NORMED: of rms_norm(x), whose weight is in w. GATED: columns are pairs of gate and up, out is silu(gate) * up [T, N / 2].
//
// Each warp has ROOM bytes of shared memory, in which as many of its turns as there is room for are under way.
constexpr int ROOM = 6144;

template <int TM, int TN, bool NORMED, bool GATED>
__device__ void codec_rows_of(
    float* shared, const Window& in, const float* w, const Finish& finish, float* kept, int T, int K, int dilation) {
  constexpr int BN = 4 * TN, ROWS = 128 * BN, STAGE = ROWS + 128 * TM, STAGES = ROOM / STAGE;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, share = lane / 4;
  const int N = finish.N, C = in.C, tiles = (T + TM - 1) / TM;
  const int first = int(blockIdx.x) % tiles * TM, column = int(blockIdx.x) / tiles * BN;
  const float inverse = 1.0f / C;
  const Place own = place(shared) + warp * ROOM;

  // Copies: 32 rows of w, TN lanes for each, and of each row of x the 32 numbers that meet them.
  const float* next_w = w + size_t(column / 16) * K * 16 + column % 16 + (32 * warp + lane / TN) * 16 + lane % TN * 4;
  int next = 32 * warp, next_stage = 0;
  auto begin = [&] {
    if (next < K) {
      const Place to = own + next_stage + 16 * lane;
      #pragma unroll
      for (int i = 0; i < TN; ++i) copy(to + 512 * i, next_w + 32 / TN * i * 16);
      #pragma unroll
      for (int i = 0; i < 8 * TM; i += 32) {
        const int row = min(first + (lane + i) / 8, T - 1), at = next + 4 * (lane % 8);
        const int tap = int((at + 0.5f) * inverse);  // at / C, quickly
        if (lane + i < 8 * TM) copy(to + ROWS + 16 * i, in.row(row + tap * dilation) + at - tap * C);
      }
      next += 256;
      next_w += 256 * 16;
      next_stage = next_stage + STAGE == STAGES * STAGE ? 0 : next_stage + STAGE;
    }
    end_group();
  };

  float sum[TM][TN] = {}, square[TM] = {};
  #pragma unroll
  for (int i = 0; i < STAGES; ++i) begin();
  int stage = 0;
  for (int k = 32 * warp; k < K; k += 256) {
    wait_groups<STAGES - 1>();
    __syncwarp();
    Pack<float, TN> f[4];
    #pragma unroll
    for (int j = 0; j < 4; ++j) f[j] = load_shared<TN>(own + stage + 128 * TN * j + 4 * TN * lane);
    #pragma unroll
    for (int i = 0; i < TM; ++i) {
      const auto x = load_shared<4>(own + stage + ROWS + 16 * (8 * i + share));
      #pragma unroll
      for (int j = 0; j < 4; ++j) {
        #pragma unroll
        for (int n = 0; n < TN; ++n) sum[i][n] = fmaf(x.at[j], f[j].at[n], sum[i][n]);
        if (NORMED) square[i] = fmaf(x.at[j], x.at[j], square[i]);
      }
    }
    stage = stage + STAGE == STAGES * STAGE ? 0 : stage + STAGE;
    __syncwarp();
    begin();
  }
  keep(in, T, kept, tiles * N / BN);
  __syncthreads();

  float *parts = shared, *squares = shared + 8 * TM * BN;  // [8][TM][BN], [8][TM]
  #pragma unroll
  for (int i = 0; i < TM; ++i) {
    #pragma unroll
    for (int bit = 4; bit < 32; bit *= 2) {
      #pragma unroll
      for (int n = 0; n < TN; ++n) sum[i][n] += __shfl_xor_sync(0xffffffffu, sum[i][n], bit);
      if (NORMED) square[i] += __shfl_xor_sync(0xffffffffu, square[i], bit);
    }
    if (share == 0) {
      #pragma unroll
      for (int n = 0; n < TN; ++n) parts[(warp * TM + i) * BN + lane * TN + n] = sum[i][n];
      if (NORMED) squares[warp * TM + i] = square[i];
    }
  }
  __syncthreads();
  constexpr int EACH = GATED ? 2 : 1;
  const int i = threadIdx.x * EACH / BN, n = threadIdx.x * EACH % BN;
  if (i >= TM || first + i >= T) return;
  float scale = 1, value[EACH] = {};
  for (int v = 0; v < 8; ++v)
    for (int e = 0; e < EACH; ++e) value[e] += parts[(v * TM + i) * BN + n + e];
  if (NORMED) {
    float power = 0;
    for (int v = 0; v < 8; ++v) power += squares[v * TM + i];
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
  __shared__ Pack<float, 4> room[8 * ROOM / 16];
  float* shared = room[0].at;
  if (T == 1) codec_rows_of<1, TN, NORMED, GATED>(shared, in, w, finish, kept, T, K, dilation);
  else if (T == 2) codec_rows_of<2, TN, NORMED, GATED>(shared, in, w, finish, kept, T, K, dilation);
  else if (T <= 4) codec_rows_of<4, TN, NORMED, GATED>(shared, in, w, finish, kept, T, K, dilation);
  else codec_rows_of<8, TN, NORMED, GATED>(shared, in, w, finish, kept, T, K, dilation);
}
}
