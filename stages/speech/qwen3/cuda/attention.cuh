namespace mlx::core::cu {
// One block of WARPS warps for one key head of one request: norms and rotation of its G query heads and its key in row
// qkv, then attention over the positions up to `here`. Those up to `begin` are in `old` [2, KV_HEADS, room, D], the
// others in `recent` [2, KV_HEADS, RECENT, D], which is copied to `out` with this position. norm [2, D], cosine, sine [D / 2].
template <typename T, int HEADS, int KV_HEADS, int D, int RECENT, int WARPS>
__device__ void attend(
    const T* qkv, const float* norm, const float* cosine, const float* sine, int here, int begin, int head,
    const T* old, size_t room, const T* recent, T* out, T* heard_by) {
  constexpr int G = HEADS / KV_HEADS, E = D / 32, HALF = D / 2, AHEAD = 4;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __shared__ float fresh[G + 2][D];
  for (int h = warp; h < G + 2; h += WARPS) {
    const int row = h < G ? head * G + h : HEADS + (h - G) * KV_HEADS + head;
    const T* from = qkv + size_t(row) * D;
    float x[E];
    float square = 0;
    for (int e = 0; e < E; ++e) { x[e] = float(from[lane + 32 * e]); square += x[e] * x[e]; }
    if (h <= G) {
      const float scale = rsqrtf(summed(square) / D + EPS);
      const float* weight = norm + (h < G ? 0 : D);
      for (int e = 0; e < E; ++e) x[e] *= scale * weight[lane + 32 * e];
      for (int e = 0; e < E / 2; ++e) {
        const float left = x[e], right = x[e + E / 2], c = cosine[lane + 32 * e], s = sine[lane + 32 * e];
        x[e] = left * c - right * s;
        x[e + E / 2] = right * c + left * s;
      }
    }
    for (int e = 0; e < E; ++e) {
      const T rounded = T(x[e]);
      fresh[h][lane + 32 * e] = float(rounded);
      if (h >= G) out[((size_t(h - G) * KV_HEADS + head) * RECENT + here - begin) * D + lane + 32 * e] = rounded;
    }
  }
  __syncthreads();
  float q[G][E], heard[G][E] = {}, most[G], total[G] = {};
  for (int g = 0; g < G; ++g) {
    most[g] = -INFINITY;
    for (int e = 0; e < E; ++e) q[g][e] = fresh[g][lane + 32 * e];
  }
  for (int first = warp; first <= here; first += WARPS * AHEAD) {
    float k[AHEAD][E], v[AHEAD][E];
    #pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      const int p = first + u * WARPS;
      if (p < here) {
        const bool moved = p < begin;
        const size_t rows = moved ? room : RECENT, row = moved ? p : p - begin;
        const size_t key_at = (size_t(head) * rows + row) * D, value_at = key_at + KV_HEADS * rows * D;
        const T* from = moved ? old : recent;
        for (int e = 0; e < E; ++e) {
          const T key = from[key_at + lane + 32 * e], value = from[value_at + lane + 32 * e];
          if (!moved) {
            out[key_at + lane + 32 * e] = key;
            out[value_at + lane + 32 * e] = value;
          }
          k[u][e] = float(key);
          v[u][e] = float(value);
        }
      } else {
        for (int e = 0; e < E; ++e) { k[u][e] = fresh[G][lane + 32 * e]; v[u][e] = fresh[G + 1][lane + 32 * e]; }
      }
    }
    #pragma unroll
    for (int u = 0; u < AHEAD; ++u) {
      if (first + u * WARPS <= here) {
        for (int g = 0; g < G; ++g) {
          float score = 0;
          for (int e = 0; e < E; ++e) score += q[g][e] * k[u][e];
          score = summed(score);
          const float larger = fmaxf(most[g], score), shrink = expf(most[g] - larger), share = expf(score - larger);
          most[g] = larger;
          total[g] = total[g] * shrink + share;
          for (int e = 0; e < E; ++e) heard[g][e] = heard[g][e] * shrink + share * v[u][e];
        }
      }
    }
  }
  __shared__ float mosts[WARPS][G], totals[WARPS][G], parts[WARPS][G][D];
  for (int g = 0; g < G; ++g) {
    if (lane == 0) { mosts[warp][g] = most[g]; totals[warp][g] = total[g]; }
    for (int e = 0; e < E; ++e) parts[warp][g][lane + 32 * e] = heard[g][e];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < G * D; i += blockDim.x) {
    const int g = i / D, d = i % D;
    float largest = mosts[0][g], whole = 0, value = 0;
    for (int w = 1; w < WARPS; ++w) largest = fmaxf(largest, mosts[w][g]);
    for (int w = 0; w < WARPS; ++w) {
      const float share = expf(mosts[w][g] - largest);
      whole += totals[w][g] * share;
      value += parts[w][g][d] * share;
    }
    heard_by[(head * G + g) * D + d] = T(value / whole);
  }
}
}
