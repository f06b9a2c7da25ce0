namespace mlx::core::cu {
// The transformer layers' weights, one behind the other, and what is passed between the parts of a layer.
template <typename T>
struct Layers {
  Matrix<T, QKV_FORM> qkv;
  Matrix<T, OUT_FORM> out;
  Matrix<T, GATE_UP_FORM> gate_up;
  Matrix<T, DOWN_FORM> down;
  const T *input_norm, *output_norm;
};

template <typename T>
struct Passed {
  T *x, *qkv, *heard, *middle, *gated;

  __device__ Passed(T* x, T* room, int rows)
      : x(x), qkv(room), heard(qkv + size_t(rows) * QKV), middle(heard + size_t(rows) * HEADS * DIM),
        gated(middle + size_t(rows) * HIDDEN) {}
};

// One position of each of `rows` requests through all layers: rows x [rows, HIDDEN], and then `passed.x`, where they
// end. `attend(layer)`, from `passed.qkv` to `passed.heard`, is called by each block. Five times a layer all blocks meet.
template <typename T, typename Attend>
__device__ void through(
    const T* x, const Layers<T>& weights, const Passed<T>& passed, int rows, Grid& grid, Attend attend) {
  for (int layer = 0; layer < LAYERS; ++layer) {
    product<T, true, false, QKV, HIDDEN, QKV_TILE>(
        x, weights.qkv.from(layer * QKV), weights.input_norm + layer * HIDDEN, rows,
        [&](int b, int n, float sum) { passed.qkv[b * QKV + n] = T(sum); });
    grid.meet();
    attend(layer);
    grid.meet();
    product<T, false, false, HIDDEN, HEADS * DIM, OUT_TILE>(
        passed.heard, weights.out.from(layer * HIDDEN), nullptr, rows,
        [&](int b, int n, float sum) { passed.middle[b * HIDDEN + n] = T(float(x[b * HIDDEN + n]) + sum); });
    grid.meet();
    product<T, true, true, 2 * INNER, HIDDEN, GATE_UP_TILE>(
        passed.middle, weights.gate_up.from(layer * 2 * INNER), weights.output_norm + layer * HIDDEN,
        rows, [&](int b, int n, float gate, float up) {
          passed.gated[b * INNER + n] = T(gate / (1 + expf(-gate)) * up);
        });
    grid.meet();
    product<T, false, false, HIDDEN, INNER, DOWN_TILE>(
        passed.gated, weights.down.from(layer * HIDDEN), nullptr, rows,
        [&](int b, int n, float sum) { passed.x[b * HIDDEN + n] = T(float(passed.middle[b * HIDDEN + n]) + sum); });
    grid.meet();
    x = passed.x;
  }
}

// The head's logits [rows, VOCABULARY] of rows x.
template <typename T>
__device__ void say(const T* x, const Matrix<T, HEAD_FORM>& head, const T* norm, float* logits, int rows) {
  product<T, true, false, VOCABULARY, HIDDEN, HEAD_TILE>(
      x, head, norm, rows, [&](int b, int n, float sum) { logits[b * VOCABULARY + n] = sum; });
}
}
