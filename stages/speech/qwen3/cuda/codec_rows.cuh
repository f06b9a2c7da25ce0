namespace mlx::core::cu {
// A causal convolution or product of few rows, which the weights' way through memory bounds: TM rows of 4 TN columns for a
// block. Its lanes are 4 groups of TN columns by 8 shares of K, its warps 8 shares again; a share has 4 neighbouring k of
// every 256. w is [N / 16, K / 32, 4, 8, 16]: the j-th k of each of the 8 shares side by side, for lanes to load in a row.
// `normed`: of rms_norm(x), whose weight is in w. `gated`: columns are pairs of gate and up, y is silu(gate) * up [T, N / 2].
//
// Each warp has ROOM bytes of shared memory, in which as many of its turns as there is room for are under way.
template <int TM, int TN>
__device__ void codec_rows(
    float* shared, int block, const Window& in, const float* w, const Finish& finish, int T, int K, int dilation,
    bool normed, bool gated) {
  constexpr int ROOM = SHARED / 8;
  constexpr int BN = 4 * TN, ROWS = 128 * BN, STAGE = ROWS + 128 * TM, STAGES = ROOM / STAGE;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, share = lane / 4;
  const int N = finish.N, C = in.C, tiles = (T + TM - 1) / TM;
  const int first = block % tiles * TM, column = block / tiles * BN;
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
        square[i] = fmaf(x.at[j], x.at[j], square[i]);
      }
    }
    stage = stage + STAGE == STAGES * STAGE ? 0 : stage + STAGE;
    __syncwarp();
    begin();
  }
  __syncthreads();

  float *parts = shared, *squares = shared + 8 * TM * BN;  // [8][TM][BN], [8][TM]
  #pragma unroll
  for (int i = 0; i < TM; ++i) {
    #pragma unroll
    for (int bit = 4; bit < 32; bit *= 2) {
      #pragma unroll
      for (int n = 0; n < TN; ++n) sum[i][n] += __shfl_xor_sync(0xffffffffu, sum[i][n], bit);
      square[i] += __shfl_xor_sync(0xffffffffu, square[i], bit);
    }
    if (share == 0) {
      #pragma unroll
      for (int n = 0; n < TN; ++n) parts[(warp * TM + i) * BN + lane * TN + n] = sum[i][n];
      squares[warp * TM + i] = square[i];
    }
  }
  __syncthreads();
  const int i = threadIdx.x / BN, n = threadIdx.x % BN;
  if (i < TM && first + i < T && !(gated && n % 2)) {
    float value[2] = {}, power = 0;
    for (int v = 0; v < 8; ++v) {
      for (int e = 0; e < 2; ++e) value[e] += parts[(v * TM + i) * BN + (n + e) % BN];
      power += squares[v * TM + i];
    }
    const float scale = normed ? rsqrtf(power / K + EPS) : 1;
    if (gated) {
      const float gate = value[0] * scale, up = value[1] * scale;
      finish.y[((first + i) * N + column + n) / 2] = gate / (1 + expf(-gate)) * up;
    } else {
      finish(first + i, column + n, value[0] * scale);
    }
  }
  __syncthreads();
}
}
