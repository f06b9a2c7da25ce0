namespace mlx::core::cu {
// Rows of a matrix that one warp sums together: EACH neighbours of N; PAIRED, half of them from the second half of N.
template <int N, int EACH, bool PAIRED>
struct Rows {
  static constexpr int TASKS = N / EACH;
  __device__ static int row(int task, int r) {
    if (!PAIRED) return task * EACH + r;
    return task * (EACH / 2) + (r < EACH / 2 ? r : r - EACH / 2 + N / 2);
  }
};

// w [N, K] over rows x [rows, K], rows <= ROWS; with NORMED over rms_norm(x), norm being its weight [K]. The sums of a
// task's rows of w go to `put(b, task, sums)`, in one lane. Each is formed in one order, whatever ROWS and EACH are.
template <typename T, int ROWS, bool NORMED, int N, int K, int EACH, bool PAIRED, typename Put>
__device__ void product(const T* x, const T* w, const T* norm, int rows, Put put) {
  using Of = Rows<N, EACH, PAIRED>;
  constexpr int V = 16 / sizeof(T), AHEAD = ROWS > 1 ? (EACH > 2 ? 1 : 2) : EACH > 2 ? 2 : 8 / EACH;
  const int lane = threadIdx.x % 32;
  for (int task = first_task(); task < Of::TASKS; task += tasks_apart()) {
    const T* from[EACH];
    #pragma unroll
    for (int r = 0; r < EACH; ++r) from[r] = w + size_t(Of::row(task, r)) * K;
    float sum[ROWS][EACH] = {}, square[ROWS] = {};
    #pragma unroll AHEAD
    for (int k = lane * V; k < K; k += 32 * V) {
      float f[EACH][V];
      #pragma unroll
      for (int r = 0; r < EACH; ++r) {
        const auto m = load_once<V>(from[r] + k);
        #pragma unroll
        for (int j = 0; j < V; ++j) f[r][j] = float(m.at[j]);
      }
      float g[V];
      if (NORMED) {
        const auto weight = load<V>(norm + k);
        #pragma unroll
        for (int j = 0; j < V; ++j) g[j] = float(weight.at[j]);
      }
      #pragma unroll
      for (int b = 0; b < ROWS; ++b) {
        if (b < rows) {
          const auto values = load<V>(x + size_t(b) * K + k);
          #pragma unroll
          for (int j = 0; j < V; ++j) {
            float value = float(values.at[j]);
            if (NORMED) {
              square[b] += value * value;
              value *= g[j];
            }
            #pragma unroll
            for (int r = 0; r < EACH; ++r) sum[b][r] += value * f[r][j];
          }
        }
      }
    }
    #pragma unroll
    for (int b = 0; b < ROWS; ++b) {
      if (b < rows) {
        const float scale = NORMED ? rsqrtf(summed(square[b]) / K + EPS) : 1;
        #pragma unroll
        for (int r = 0; r < EACH; ++r) sum[b][r] = summed(sum[b][r]) * scale;
        if (lane == 0) put(b, task, sum[b]);
      }
    }
  }
}

// Has the rows of w that a warp will sum first brought near, while it waits for the others.
template <typename T, int N, int K, int EACH, bool PAIRED>
__device__ void expect(const T* w) {
  using Of = Rows<N, EACH, PAIRED>;
  constexpr int LINE = 128 / sizeof(T);
  const int task = first_task();
  if (task >= Of::TASKS) return;
  for (int r = 0; r < EACH; ++r) {
    const T* from = w + size_t(Of::row(task, r)) * K;
    for (int k = threadIdx.x % 32 * LINE; k < K; k += 32 * LINE) fetch(from + k);
  }
}
}
