namespace mlx::core::cu {
// One block of WARPS warps for one query head of one request: norms and rotation of it and its key head in row qkv,
// then attention over the positions up to `here`. Those up to `begin` are in `old` [2, KV_HEADS, room, DIM], the others
// in `recent` [2, KV_HEADS, SIZE, DIM]. The first query head of a key head writes them and this position to `out`,
// which may be `recent` itself. norm [2, DIM], cosine, sine [DIM / 2].
template <typename T, int SIZE>
__device__ void attend(
    const T* qkv, const float* norm, const float* cosine, const float* sine, int here, int begin, int query,
    const T* old, size_t room, const T* recent, T* out, T* heard_by) {
  constexpr int G = HEADS / KV_HEADS, E = DIM / 32, AHEAD = 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = query / G;
  const bool writes = query % G == 0;
  __shared__ float fresh[3][DIM];
  for (int h = warp; h < 3; h += WARPS) {
    const T* from = qkv + size_t(h == 0 ? query : HEADS + (h - 1) * KV_HEADS + head) * DIM;
    float x[E];
    float square = 0;
    for (int e = 0; e < E; ++e) { x[e] = float(from[lane + 32 * e]); square += x[e] * x[e]; }
    if (h < 2) {
      const float scale = rsqrtf(summed(square) / DIM + EPS);
      for (int e = 0; e < E; ++e) x[e] *= scale * norm[h * DIM + lane + 32 * e];
      for (int e = 0; e < E / 2; ++e) {
        const float left = x[e], right = x[e + E / 2], c = cosine[lane + 32 * e], s = sine[lane + 32 * e];
        x[e] = left * c - right * s;
        x[e + E / 2] = right * c + left * s;
      }
    }
    for (int e = 0; e < E; ++e) {
      const T rounded = T(x[e]);
      fresh[h][lane + 32 * e] = float(rounded);
      if (h > 0 && writes)
        out[((size_t(h - 1) * KV_HEADS + head) * SIZE + here - begin) * DIM + lane + 32 * e] = rounded;
    }
  }
  __syncthreads();
  float q[E], heard[E] = {}, most = -INFINITY, total = 0;
  for (int e = 0; e < E; ++e) q[e] = fresh[0][lane + 32 * e];
  for (int first = warp; first <= here; first += WARPS * AHEAD) {
    float k[AHEAD][E], v[AHEAD][E];
    #pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int p = first + u * WARPS;
      if (p < here) {
        const bool moved = p < begin;
        const size_t rows = moved ? room : SIZE, row = moved ? p : p - begin;
        const size_t key_at = (size_t(head) * rows + row) * DIM, value_at = key_at + KV_HEADS * rows * DIM;
        const T* from = moved ? old : recent;
        for (int e = 0; e < E; ++e) {
          const T key = from[key_at + lane + 32 * e], value = from[value_at + lane + 32 * e];
          if (!moved && writes && recent != out) {
            out[key_at + lane + 32 * e] = key;
            out[value_at + lane + 32 * e] = value;
          }
          k[u][e] = float(key);
          v[u][e] = float(value);
        }
      } else {
        for (int e = 0; e < E; ++e) { k[u][e] = fresh[1][lane + 32 * e]; v[u][e] = fresh[2][lane + 32 * e]; }
      }
    }
    #pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      if (first + u * WARPS <= here) {
        float score = 0;
        for (int e = 0; e < E; ++e) score += q[e] * k[u][e];
        score = summed(score);
        const float larger = fmaxf(most, score), shrink = expf(most - larger), share = expf(score - larger);
        most = larger;
        total = total * shrink + share;
        for (int e = 0; e < E; ++e) heard[e] = heard[e] * shrink + share * v[u][e];
      }
    }
  }
  __shared__ float mosts[WARPS], totals[WARPS], parts[WARPS][DIM];
  if (lane == 0) { mosts[warp] = most; totals[warp] = total; }
  for (int e = 0; e < E; ++e) parts[warp][lane + 32 * e] = heard[e];
  __syncthreads();
  for (int d = threadIdx.x; d < DIM; d += blockDim.x) {
    float largest = mosts[0], whole = 0, value = 0;
    for (int w = 1; w < WARPS; ++w) largest = fmaxf(largest, mosts[w]);
    for (int w = 0; w < WARPS; ++w) {
      const float share = expf(mosts[w] - largest);
      whole += totals[w] * share;
      value += parts[w][d] * share;
    }
    heard_by[query * DIM + d] = T(value / whole);
  }
  __syncthreads();
}
}
