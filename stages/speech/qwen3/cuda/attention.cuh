namespace mlx::core::cu {
constexpr int GROUP = HEADS / KV_HEADS;

// One block for the CHUNK positions from `first` on, of one key head of one request and its GROUP query heads: norms and
// rotation of these heads in row qkv, then attention over the positions up to `here`. Those up to `begin` are in `old`
// [2, KV_HEADS, room, DIM], the others in `recent` [2, KV_HEADS, SIZE, DIM]; what is not in `old` is written to `out`,
// which may be `recent` itself. norm [2, DIM], cosine, sine [DIM / 2]. With e(p) = exp(score of p - largest),
// put(query head of the group, d, sum of e(p) value of p, largest, sum of e(p)) is called once each.
template <typename T, int SIZE, typename Put>
__device__ void attend(
    const T* qkv, const float* norm, const float* cosine, const float* sine, int here, int begin, int head, int first,
    const T* old, size_t room, const T* recent, T* out, Put put) {
  // A lane has eight dimensions of EACH positions, a warp ABREAST positions side by side.
  constexpr int E = DIM / 32, LANES = DIM / 8, ABREAST = 32 / LANES, EACH = CHUNK / (WARPS * ABREAST);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  __shared__ float fresh[GROUP + 2][DIM];
  for (int h = warp; h < GROUP + 2; h += WARPS) {
    const T* from = qkv + size_t(h < GROUP ? head * GROUP + h : HEADS + (h - GROUP) * KV_HEADS + head) * DIM;
    float x[E];
    float square = 0;
    for (int e = 0; e < E; ++e) { x[e] = float(from[lane + 32 * e]); square += x[e] * x[e]; }
    if (h <= GROUP) {
      const float scale = rsqrtf(summed(square) / DIM + EPS);
      for (int e = 0; e < E; ++e) x[e] *= scale * norm[(h == GROUP) * DIM + lane + 32 * e];
      for (int e = 0; e < E / 2; ++e) {
        const float left = x[e], right = x[e + E / 2], c = cosine[lane + 32 * e], s = sine[lane + 32 * e];
        x[e] = left * c - right * s;
        x[e + E / 2] = right * c + left * s;
      }
    }
    for (int e = 0; e < E; ++e) {
      const T rounded = T(x[e]);
      fresh[h][lane + 32 * e] = float(rounded);
      if (h >= GROUP && here < first + CHUNK)
        out[((size_t(h - GROUP) * KV_HEADS + head) * SIZE + here - begin) * DIM + lane + 32 * e] = rounded;
    }
  }
  __syncthreads();

  const int dim = lane % LANES * 8;
  const auto position = [&](int u) { return first + (u * WARPS + warp) * ABREAST + lane / LANES; };
  const int live = min(EACH, (here - first) / (WARPS * ABREAST) + 1);  // the positions of the others are empty
  Pack<T, 8> k[EACH], v[EACH];
  #pragma unroll
  for (int u = 0; u < EACH; ++u) {
    const int p = position(u);
    if (u >= live) continue;
    if (p < here) {
      const bool moved = p < begin;
      const size_t rows = moved ? room : SIZE, row = moved ? p : p - begin;
      const size_t key_at = (size_t(head) * rows + row) * DIM + dim, value_at = key_at + KV_HEADS * rows * DIM;
      const T* from = moved ? old : recent;
      k[u] = load<8>(from + key_at);
      v[u] = load<8>(from + value_at);
      if (!moved && recent != out) {
        *reinterpret_cast<Pack<T, 8>*>(out + key_at) = k[u];
        *reinterpret_cast<Pack<T, 8>*>(out + value_at) = v[u];
      }
    } else {
      #pragma unroll
      for (int j = 0; j < 8; ++j) { k[u].at[j] = T(fresh[GROUP][dim + j]); v[u].at[j] = T(fresh[GROUP + 1][dim + j]); }
    }
  }

  __shared__ float mosts[GROUP][WARPS], totals[GROUP][WARPS], parts[GROUP][WARPS][DIM];
  for (int g = 0; g < GROUP; ++g) {
    float score[EACH], most = -INFINITY, total = 0, heard[8] = {};
    #pragma unroll
    for (int u = 0; u < EACH; ++u) {
      if (u >= live) continue;
      float sum = 0;
      #pragma unroll
      for (int j = 0; j < 8; ++j) sum += fresh[g][dim + j] * float(k[u].at[j]);
      for (int i = LANES / 2; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
      score[u] = position(u) <= here ? sum : -INFINITY;
      most = fmaxf(most, score[u]);
    }
    #pragma unroll
    for (int u = 0; u < EACH; ++u) {
      if (u >= live) continue;
      const float share = position(u) <= here ? expf(score[u] - most) : 0;
      total += share;
      #pragma unroll
      for (int j = 0; j < 8; ++j) heard[j] += share * float(v[u].at[j]);
    }
    for (int i = LANES; i < 32; i *= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, most, i), largest = fmaxf(most, other);
      const float own = most == largest ? 1 : expf(most - largest), its = other == largest ? 1 : expf(other - largest);
      total = total * own + __shfl_xor_sync(0xffffffffu, total, i) * its;
      #pragma unroll
      for (int j = 0; j < 8; ++j) heard[j] = heard[j] * own + __shfl_xor_sync(0xffffffffu, heard[j], i) * its;
      most = largest;
    }
    if (lane < LANES) for (int j = 0; j < 8; ++j) parts[g][warp][dim + j] = heard[j];
    if (lane == 0) { mosts[g][warp] = most; totals[g][warp] = total; }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < GROUP * DIM; i += blockDim.x) {
    const int g = i / DIM, d = i % DIM;
    float largest = -INFINITY, whole = 0, value = 0;
    for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, mosts[g][w]);
    for (int w = 0; w < WARPS; ++w) {
      const float share = expf(mosts[g][w] - largest);
      whole += totals[g][w] * share;
      value += parts[g][w][d] * share;
    }
    put(g, d, value, largest, whole);
  }
  __syncthreads();
}

// What `attend` has put for a query head of a request with `here` + 1 positions: [chunks, DIM + 2].
struct Chunks {
  float* at;

  __device__ static int count(int here) { return here / CHUNK + 1; }

  __device__ void put(int chunk, int d, float value, float largest, float whole) const {
    float* own = at + chunk * (DIM + 2);
    own[d] = value;
    if (d == 0) { own[DIM] = largest; own[DIM + 1] = whole; }
  }

  // Dimension d of what is heard of all of them.
  __device__ float heard(int count, int d) const {
    float largest = -INFINITY, whole = 0, value = 0;
    for (int c = 0; c < count; ++c) largest = fmaxf(largest, at[c * (DIM + 2) + DIM]);
    for (int c = 0; c < count; ++c) {
      const float *own = at + c * (DIM + 2), share = expf(own[DIM] - largest);
      whole += own[DIM + 1] * share;
      value += own[d] * share;
    }
    return value / whole;
  }
};
}
