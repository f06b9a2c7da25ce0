// The talker's step: one position of each of `rows` requests, and the code 0 that is chosen behind it.
const int rows = x_shape[0], own = blockIdx.x;
Grid grid(ticket, left);
const Layers<T> layers{QKV_AT, OUT_AT, GATE_UP_AT, DOWN_AT, input_norm, output_norm};
const Matrix<T, HEAD_FORM> heads HEAD_AT;
const Passed<T> passed(made, room, rows);
draw<THREADS>(
    drawn, key, 0, 1, rows, VOCABULARY, [&](int b) { return frame[b] + 1; }, [&](int b) { return noise[b]; });

int here[8], begin[8], most = 0;
for (int b = 0; b < rows; ++b) { here[b] = position[b]; begin[b] = base[b]; most = max(most, here[b]); }
const int chunks = Chunks::count(most);
const auto heard_by = [&](int b, int query) { return Chunks{parts + (b * HEADS + query) * chunks * (DIM + 2)}; };
through(x, layers, passed, rows, grid, [&](int layer) {
  const size_t at = size_t(layer) * 2 * KV_HEADS * DIM, positions = old0_shape[3];  // of every cache
  for (int task = blockIdx.x; task < rows * KV_HEADS * chunks; task += gridDim.x) {
    const int b = task / KV_HEADS % rows, head = task % KV_HEADS, chunk = task / (KV_HEADS * rows);
    if (chunk >= Chunks::count(here[b])) continue;
    const T *old = nullptr, *recent = nullptr;
    T* now = nullptr;
#define OF(i) if (b == i) { old = old##i; recent = recent##i; now = now##i; }
    OF(0) OF(1) OF(2) OF(3) OF(4) OF(5) OF(6) OF(7)
    attend<T, RECENT>(
        passed.qkv + size_t(b) * QKV, head_norm + layer * 2 * DIM, cos + size_t(here[b]) * DIM / 2,
        sin + size_t(here[b]) * DIM + DIM / 2, here[b], begin[b], head, chunk * CHUNK, old + at * positions, positions,
        recent + at * RECENT, now + at * RECENT, [&](int g, int d, float value, float largest, float whole) {
          const int query = head * GROUP + g;
          if (here[b] < CHUNK) passed.heard[(b * HEADS + query) * DIM + d] = T(value / whole);
          else heard_by(b, query).put(chunk, d, value, largest, whole);
        });
  }
  if (chunks == 1) return;
  grid.meet();
  for (int task = blockIdx.x; task < rows * HEADS; task += gridDim.x) {
    const int b = task / HEADS, query = task % HEADS, count = Chunks::count(here[b]);
    if (count == 1) continue;
    for (int d = threadIdx.x; d < DIM; d += THREADS)
      passed.heard[task * DIM + d] = T(heard_by(b, query).heard(count, d));
  }
});

say(made, heads, norm, logits, rows);
grid.meet();
if (own < rows) {  // there are more blocks than rows
  const T* row = made + own * HIDDEN;
  float square = 0;
  for (int k = threadIdx.x; k < HIDDEN; k += THREADS) square += float(row[k]) * float(row[k]);
  const float scale = rsqrtf(block_sum<THREADS>(square) / HIDDEN + EPS);
  for (int k = threadIdx.x; k < HIDDEN; k += THREADS)
    hidden[own * HIDDEN + k] = T(float(row[k]) * scale * float(norm[k]));

  const int begun = frame[own] + 1;
  float* said = logits + own * VOCABULARY;
  const float* bars = barred + (begun < MIN_FRAMES ? 0 : VOCABULARY);
  const bool* before = seen + own * VOCABULARY;
  for (int at = threadIdx.x; at < VOCABULARY; at += THREADS) {  // as `choose` goes through them: its own each
    const float value = said[at], less = value < 0 ? value * penalty[own] : value / penalty[own];
    said[at] = (before[at] ? less : value) + bars[at];
  }
  const int chosen = choose<THREADS>(
      said, drawn + own * VOCABULARY, VOCABULARY, VOCABULARY - rank[own], top_p[own], temperature[own]);
  for (int at = threadIdx.x; at < VOCABULARY; at += THREADS)
    seen_now[own * VOCABULARY + at] = before[at] || at == chosen;
  if (threadIdx.x == 0) {
    code[own] = chosen;
    frame_now[own] = begun;
    position_now[own] = here[own] + 1;
  }
}
