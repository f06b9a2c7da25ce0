namespace mlx::core::cu {
// The transformer layers' weights, one behind the other, and what is passed between the parts of a layer.
template <typename T>
struct Layers {
  const T *qkv, *out, *gate_up, *down, *input_norm, *output_norm;
};

template <typename T>
struct Passed {
  T *x, *qkv, *heard, *middle, *gated;

  __device__ Passed(T* x, T* room, int rows)
      : x(x), qkv(room), heard(qkv + size_t(rows) * QKV), middle(heard + size_t(rows) * HEADS * DIM),
        gated(middle + size_t(rows) * HIDDEN) {}
};

// One position of each of `rows` requests through all layers: rows x [rows, HIDDEN], and then `passed.x`, where they
// end. `attend(layer, b, head)` is called by a block. Five times a layer all blocks meet.
template <int ROWS, typename T, typename Attend>
__device__ void through(
    const T* x, const Layers<T>& weights, const Passed<T>& passed, int rows, Grid& grid, Attend attend) {
  for (int layer = 0; layer < LAYERS; ++layer) {
    const T* qkv = weights.qkv + size_t(layer) * QKV * HIDDEN;
    const T* out = weights.out + size_t(layer) * HIDDEN * HEADS * DIM;
    const T* gate_up = weights.gate_up + size_t(layer) * 2 * INNER * HIDDEN;
    const T* down = weights.down + size_t(layer) * HIDDEN * INNER;
    product<T, ROWS, true, QKV, HIDDEN, EACH_QKV, false>(
        x, qkv, weights.input_norm + layer * HIDDEN, rows, [&](int b, int task, const float* sums) {
          for (int r = 0; r < EACH_QKV; ++r) passed.qkv[size_t(b) * QKV + task * EACH_QKV + r] = T(sums[r]);
        });
    expect<T, HIDDEN, HEADS * DIM, EACH_OUT, false>(out);
    grid.meet();
    for (int task = blockIdx.x; task < rows * HEADS; task += gridDim.x) attend(layer, task / HEADS, task % HEADS);
    expect<T, 2 * INNER, HIDDEN, EACH_GATE_UP, true>(gate_up);
    grid.meet();
    product<T, ROWS, false, HIDDEN, HEADS * DIM, EACH_OUT, false>(
        passed.heard, out, nullptr, rows, [&](int b, int task, const float* sums) {
          const size_t at = size_t(b) * HIDDEN + task * EACH_OUT;
          for (int r = 0; r < EACH_OUT; ++r) passed.middle[at + r] = T(float(x[at + r]) + sums[r]);
        });
    grid.meet();
    product<T, ROWS, true, 2 * INNER, HIDDEN, EACH_GATE_UP, true>(
        passed.middle, gate_up, weights.output_norm + layer * HIDDEN, rows,
        [&](int b, int task, const float* sums) {
          constexpr int PAIRS = EACH_GATE_UP / 2;
          for (int r = 0; r < PAIRS; ++r) {
            const float gate = sums[r], up = sums[PAIRS + r];
            passed.gated[size_t(b) * INNER + task * PAIRS + r] = T(gate / (1 + expf(-gate)) * up);
          }
        });
    expect<T, HIDDEN, INNER, EACH_DOWN, false>(down);
    grid.meet();
    product<T, ROWS, false, HIDDEN, INNER, EACH_DOWN, false>(
        passed.gated, down, nullptr, rows, [&](int b, int task, const float* sums) {
          const size_t at = size_t(b) * HIDDEN + task * EACH_DOWN;
          for (int r = 0; r < EACH_DOWN; ++r) passed.x[at + r] = T(float(passed.middle[at + r]) + sums[r]);
        });
    if (layer + 1 < LAYERS) expect<T, QKV, HIDDEN, EACH_QKV, false>(qkv + size_t(QKV) * HIDDEN);
    grid.meet();
    x = passed.x;
  }
}

// The head's logits [rows, VOCABULARY] of rows x.
template <int ROWS, typename T>
__device__ void say(const T* x, const T* head, const T* norm, float* logits, int rows) {
  product<T, ROWS, true, VOCABULARY, HIDDEN, EACH_HEAD, false>(
      x, head, norm, rows, [&](int b, int task, const float* sums) {
        for (int r = 0; r < EACH_HEAD; ++r) logits[size_t(b) * VOCABULARY + task * EACH_HEAD + r] = sums[r];
      });
}
}
