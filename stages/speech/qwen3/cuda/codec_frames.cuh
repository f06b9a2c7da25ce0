namespace mlx::core::cu {
// One block for a frame: the sum of its codes' rows of `tables` [groups * size, C], and the rotation of its position.
__device__ void codec_frame(
    int t, const float* tables, const int* codes, const int* position, const float* frequencies, float* x, float* turn,
    int groups, int size, int C, int half) {
  for (int c = 4 * threadIdx.x; c < C; c += 1024) {
    Pack<float, 4> sum = {};
    for (int g = 0; g < groups; ++g) {
      const auto row = load<4>(tables + (size_t(g) * size + codes[t * groups + g]) * C + c);
      for (int j = 0; j < 4; ++j) sum.at[j] += row.at[j];
    }
    *reinterpret_cast<Pack<float, 4>*>(x + size_t(t) * C + c) = sum;
  }
  for (int i = threadIdx.x; i < half; i += 256) {
    const float angle = float(position[0] + t) * frequencies[i];
    turn[(2 * t) * half + i] = cosf(angle);
    turn[(2 * t + 1) * half + i] = sinf(angle);
  }
}

// One block for one query of one head: rotation, and attention over its own position and the PAST before it. Rows of qkv are
// [HEADS + 2 KV_HEADS, D]; `cache`, and `kept` for the next step, [2, KV_HEADS, PAST, D]: keys, rotated, and values.
__device__ void codec_attend(
    float* shared, int block, const float* qkv, const float* turn, const float* cache, int position, int steps,
    float* heard, float* kept) {
  constexpr int D = DIM, G = HEADS / KV_HEADS, HALF = D / 2, WIDE = (HEADS + 2 * KV_HEADS) * D;
  constexpr int SEEN = PAST + 1, PARTS = 256 / D;
  const int t = block / HEADS, head = block % HEADS, kv = head / G;
  const float* keys = cache + size_t(kv) * PAST * D;
  const float* values = keys + size_t(KV_HEADS) * PAST * D;
  auto turned = [&](int step, int row, int d) {
    const float* from = qkv + size_t(step) * WIDE + row * D;
    const float c = turn[2 * step * HALF + d % HALF], s = turn[(2 * step + 1) * HALF + d % HALF];
    const float other = d < HALF ? -from[d + HALF] : from[d - HALF];
    return fmaf(from[d], c, other * s);
  };
  auto key = [&](int row, int d) { return row < PAST ? keys[row * D + d] : turned(row - PAST, HEADS + kv, d); };
  auto value = [&](int row, int d) {
    return row < PAST ? values[row * D + d] : qkv[size_t(row - PAST) * WIDE + (HEADS + KV_HEADS + kv) * D + d];
  };
  float *query = shared, *parts = query + D, *share = parts + PARTS * D;  // [D], [PARTS, D], [SEEN]
  if (threadIdx.x < D) query[threadIdx.x] = turned(t, head, threadIdx.x) * rsqrtf(float(D));
  __syncthreads();
  for (int i = threadIdx.x; i < SEEN; i += 256) {
    const int row = t + i;
    float score = 0;
    if (row < PAST) {
      #pragma unroll
      for (int d = 0; d < D; d += 4) {
        const auto four = load<4>(keys + row * D + d);
        for (int j = 0; j < 4; ++j) score = fmaf(query[d + j], four.at[j], score);
      }
    } else {
      #pragma unroll 4
      for (int d = 0; d < D; ++d) score = fmaf(query[d], key(row, d), score);
    }
    share[i] = row < PAST - position ? -INFINITY : score;
  }
  __syncthreads();
  // Each warp finds the largest and the sum for itself, in the same order.
  const int lane = threadIdx.x % 32;
  float most = -INFINITY, total = 0;
  for (int i = lane; i < SEEN; i += 32) most = fmaxf(most, share[i]);
  for (int bit = 16; bit > 0; bit /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, bit));
  for (int i = lane; i < SEEN; i += 32) total += expf(share[i] - most);
  total = summed(total);
  const int d = threadIdx.x % D, part = threadIdx.x / D;
  float sum = 0;
  #pragma unroll 4
  for (int i = part; i < SEEN; i += PARTS) sum = fmaf(expf(share[i] - most), value(t + i, d), sum);
  parts[part * D + d] = sum;
  if (head % G == 0) {
    float* kept_keys = kept + size_t(kv) * PAST * D;
    float* kept_values = kept_keys + size_t(KV_HEADS) * PAST * D;
    for (int row = t + steps * part; row < PAST; row += steps * PARTS) {
      kept_keys[row * D + d] = key(row + steps, d);
      kept_values[row * D + d] = value(row + steps, d);
    }
  }
  __syncthreads();
  if (part == 0) {
    float whole = 0;
    for (int p = 0; p < PARTS; ++p) whole += parts[p * D + d];
    heard[(size_t(t) * HEADS + head) * D + d] = whole / total;
  }
}
}
