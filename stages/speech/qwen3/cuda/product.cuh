namespace mlx::core::cu {
// One warp sums two rows of w [N, K] over all rows of x [rows, K], rows <= ROWS; other is the norm's weight [K].
// Out [rows, N] is w rms_norm(x); GATED: [rows, N / 2], silu(gate) * up of its halves; ADDED: other [rows, N] + w x.
template <typename T, typename O, int ROWS>
__device__ void product_of(const T* x, const T* w, const T* other, O* out, int rows, int N, int K) {
  constexpr int V = 16 / sizeof(T);
  const int lane = threadIdx.x % 32;
  const int pair = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  if (2 * pair >= N) return;
#ifdef GATED
  const int one = pair, two = pair + N / 2;
#else
  const int one = 2 * pair, two = one + 1;
#endif
  const T* w_one = w + size_t(one) * K;
  const T* w_two = w + size_t(two) * K;
  float sum_one[ROWS] = {}, sum_two[ROWS] = {}, square[ROWS] = {};
  #pragma unroll 4
  for (int k = lane * V; k < K; k += 32 * V) {
    auto m_one = load<V>(w_one + k), m_two = load<V>(w_two + k);
    float f_one[V], f_two[V];
#ifdef ADDED
    #pragma unroll
    for (int j = 0; j < V; ++j) { f_one[j] = float(m_one.at[j]); f_two[j] = float(m_two.at[j]); }
#else
    auto g = load<V>(other + k);
    #pragma unroll
    for (int j = 0; j < V; ++j) {
      f_one[j] = float(m_one.at[j]) * float(g.at[j]);
      f_two[j] = float(m_two.at[j]) * float(g.at[j]);
    }
#endif
    #pragma unroll
    for (int b = 0; b < ROWS; ++b) {
      if (b < rows) {
        auto values = load<V>(x + size_t(b) * K + k);
        #pragma unroll
        for (int j = 0; j < V; ++j) {
          const float value = float(values.at[j]);
          sum_one[b] += value * f_one[j];
          sum_two[b] += value * f_two[j];
          square[b] += value * value;
        }
      }
    }
  }
  #pragma unroll
  for (int b = 0; b < ROWS; ++b) {
    if (b < rows) {
      float y_one = summed(sum_one[b]), y_two = summed(sum_two[b]);
#ifndef ADDED
      const float scale = rsqrtf(summed(square[b]) / K + EPS);
      y_one *= scale;
      y_two *= scale;
#endif
      if (lane == 0) {
#if defined(GATED)
        out[size_t(b) * (N / 2) + one] = O(y_one / (1 + expf(-y_one)) * y_two);
#elif defined(ADDED)
        const size_t at = size_t(b) * N + one;
        out[at] = O(float(other[at]) + y_one);
        out[at + 1] = O(float(other[at + 1]) + y_two);
#else
        out[size_t(b) * N + one] = O(y_one);
        out[size_t(b) * N + two] = O(y_two);
#endif
      }
    }
  }
}

template <typename T, typename O>
__device__ void product(const T* x, const T* w, const T* other, O* out, int rows, int N, int K) {
  if (rows == 1) product_of<T, O, 1>(x, w, other, out, rows, N, K);
  else if (rows == 2) product_of<T, O, 2>(x, w, other, out, rows, N, K);
  else if (rows <= 4) product_of<T, O, 4>(x, w, other, out, rows, N, K);
  else product_of<T, O, 8>(x, w, other, out, rows, N, K);
}
}
