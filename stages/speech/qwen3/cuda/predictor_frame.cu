// The code groups behind the first, of one frame of each of `rows` requests, each chosen in turn; and what the talker
// takes in of the frame.
const int rows = start_shape[0], own = blockIdx.x, last = rank_shape[0] - 1;  // one control for all, or for each
static_assert(GROUPS <= CHUNK);
Grid grid(ticket, left);
const Layers<T> layers{QKV_AT, OUT_AT, GATE_UP_AT, DOWN_AT, input_norm, output_norm};
const Matrix<T, HEAD_FORM> heads HEAD_AT;
const Passed<T> passed(x, room, rows);
draw<THREADS>(
    drawn, key, 1, GROUPS - 1, rows, VOCABULARY, [&](int b) { return frame[b]; },
    [&](int b) { return noise[min(b, last)]; });

T* given = passed.gated + size_t(rows) * INNER;
const auto give = [&](int b, int row) {
  for (int k = threadIdx.x; k < HIDDEN; k += THREADS) given[b * HIDDEN + k] = inputs[size_t(row) * HIDDEN + k];
};
const int control = min(own, last);  // there are more blocks than rows
const int kept_ids = VOCABULARY - rank[control];
const float p = top_p[control], heat = temperature[control];
if (own < rows) {
  give(own, code0[own]);
  if (threadIdx.x == 0) codes[own * GROUPS] = code0[own];
}
for (int at = 0; at < GROUPS; ++at) {
  through(at == 0 ? start : given, layers, passed, rows, grid, [&](int layer) {
    for (int task = blockIdx.x; task < rows * KV_HEADS; task += gridDim.x) {
      const int b = task / KV_HEADS, head = task % KV_HEADS;
      T* past = kept + (size_t(b) * LAYERS + layer) * 2 * KV_HEADS * GROUPS * DIM;
      attend<T, GROUPS>(
          passed.qkv + size_t(b) * QKV, head_norm + layer * 2 * DIM, cos + at * DIM / 2, sin + at * DIM + DIM / 2, at,
          0, head, 0, nullptr, 0, past, past, [&](int g, int d, float value, float, float whole) {
            passed.heard[(b * HEADS + head * GROUP + g) * DIM + d] = T(value / whole);
          });
    }
  });
  if (at == 0) continue;
  say(x, heads.from((at - 1) * VOCABULARY), norm, logits, rows);
  grid.meet();
  if (own < rows) {
    const int code = choose<THREADS>(
        logits + own * VOCABULARY, drawn + (size_t(at - 1) * rows + own) * VOCABULARY, VOCABULARY, kept_ids, p, heat);
    if (threadIdx.x == 0) codes[own * GROUPS + at] = code;
    if (at + 1 < GROUPS) give(own, FIRST + (at - 1) * VOCABULARY + code);
  }
  if (at + 1 < GROUPS) grid.meet();
}

if (own < rows) {
  __syncthreads();
  for (int k = threadIdx.x; k < WIDE; k += THREADS) {
    float sum = 0;
    for (int at = 0; at < GROUPS; ++at) {
      const int row = codes[own * GROUPS + at] + (at == 0 ? 0 : FIRST + (at - 1) * VOCABULARY);
      sum += float(table[size_t(row) * WIDE + k]);
    }
    embedded[own * WIDE + k] = T(sum);
  }
}
