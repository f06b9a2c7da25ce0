// CUDA's words on a CPU: the threads of one block are fibers that take turns. Blocks run one after the other, each until
// it ends or sleeps, waiting for another; what it shared is then lost.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define __device__
#define __shared__ static
using std::max;
using std::min;

struct Place { unsigned x = 0; };
inline Place threadIdx, blockIdx, blockDim, gridDim;
struct uint4 { unsigned x, y, z, w; };
struct Shape { int sizes[8]; int operator[](int i) const { return sizes[i]; } };

struct Barrier { unsigned members = 0, arrived = 0, round = 0; };

// A thread's copies to shared memory that are under way, and the groups that it has ended.
struct Copies {
  struct One { uintptr_t to; const float* from; unsigned group; };
  std::vector<One> open;
  unsigned groups = 0;
};

struct Block {
  static constexpr size_t STACK = 1 << 16;
  std::vector<ucontext_t> fibers;
  std::vector<bool> done;
  std::vector<Barrier> warps;
  std::vector<uint64_t> lanes[2];  // of every other exchange: the last one may still be read
  std::vector<bool> odd;
  Barrier all;
  // From a fiber's second turn on: unlike swapcontext these make no system call.
  std::unique_ptr<jmp_buf[]> places;
  std::vector<bool> begun;
  jmp_buf home;
  std::function<void()> body;
  std::vector<unsigned> counts, calls;  // of each __syncthreads_count; how many each thread has made
  std::vector<Copies> copies;
  std::unique_ptr<char[]> stacks;
  unsigned left = 0;
  bool sleeps = false;

  void begin(unsigned threads, std::function<void()> given);

  // Until all threads are done, or one sleeps and the others wait for it.
  void run() {
    sleeps = false;
    while (left > 0 && !sleeps) {
      for (unsigned t = 0; t < fibers.size(); ++t) {
        if (done[t]) continue;
        threadIdx.x = t;
        go_on(t);
        left -= done[t];
      }
    }
  }

  void pause() {
    if (!_setjmp(places[threadIdx.x])) _longjmp(home, 1);
  }

  void go_on(unsigned t) {
    if (_setjmp(home)) return;
    if (begun[t]) _longjmp(places[t], 1);
    begun[t] = true;
    setcontext(&fibers[t]);
  }

  // Whoever has left the kernel is not waited for.
  void meet(Barrier& barrier) {
    const unsigned round = barrier.round;
    if (++barrier.arrived == barrier.members) { barrier.arrived = 0; ++barrier.round; }
    else while (barrier.round == round) pause();
  }

  void leave(Barrier& barrier) {
    if (--barrier.members && barrier.arrived == barrier.members) { barrier.arrived = 0; ++barrier.round; }
  }
};
inline Block* block = nullptr;

inline void enter() {
  block->body();
  const unsigned self = threadIdx.x;
  block->leave(block->warps[self / 32]);
  block->leave(block->all);
  block->done[self] = true;
  _longjmp(block->home, 1);
}

inline void Block::begin(unsigned threads, std::function<void()> given) {
  body = given;
  fibers.resize(threads);
  done.resize(threads);
  begun.resize(threads);
  places.reset(new jmp_buf[threads]);
  for (auto& one : lanes) one.resize(threads);
  odd.resize(threads);
  calls.resize(threads);
  copies.resize(threads);
  all.members = left = threads;
  warps.resize((threads + 31) / 32);
  stacks.reset(new char[threads * STACK]);
  for (unsigned t = 0; t < threads; ++t) {
    ++warps[t / 32].members;
    getcontext(&fibers[t]);
    fibers[t].uc_stack.ss_sp = stacks.get() + t * STACK;
    fibers[t].uc_stack.ss_size = STACK;
    fibers[t].uc_link = nullptr;
    makecontext(&fibers[t], enter, 0);
  }
}

inline void launch(unsigned blocks, unsigned threads, std::function<void()> body) {
  blockDim.x = threads;
  gridDim.x = blocks;
  std::vector<Block> all(blocks);
  for (unsigned b = 0; b < blocks; ++b) all[b].begin(threads, body);
  for (unsigned left = blocks; left > 0;) {
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
      block = &all[blockIdx.x];
      if (block->left == 0) continue;
      block->run();
      left -= block->left == 0;
    }
  }
}

inline void __syncthreads() { block->meet(block->all); }
inline void __syncwarp() { block->meet(block->warps[threadIdx.x / 32]); }

inline int __syncthreads_count(int flag) {
  const unsigned call = block->calls[threadIdx.x]++;
  if (call == block->counts.size()) block->counts.push_back(0);
  block->counts[call] += flag != 0;
  __syncthreads();
  return block->counts[call];
}

inline int __syncthreads_or(int flag) { return __syncthreads_count(flag) != 0; }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  const unsigned self = threadIdx.x;
  auto& lanes = block->lanes[block->odd[self]];
  block->odd[self].flip();
  std::memcpy(&lanes[self], &value, sizeof(T));
  block->meet(block->warps[self / 32]);
  T other;
  std::memcpy(&other, &lanes[self ^ mask], sizeof(T));
  return other;
}

inline int __reduce_add_sync(unsigned mask, int x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(mask, x, i);
  return x;
}

inline void give_way() { block->sleeps = true; block->pause(); }
inline uint4 __ldcs(const uint4* from) { return *from; }

// What codec.cuh has as PTX. A copy arrives at once or, in turns, as late as it may: neither must matter.
namespace mlx::core::cu {
template <typename T, int N>
struct Pack;
using Place = uintptr_t;
inline Place place(const void* shared) { return Place(shared); }
template <int N, typename T = float>
Pack<T, N> load_shared(Place from) { return *reinterpret_cast<const Pack<T, N>*>(from); }
inline void copy(Place to, const float* from) {
  Copies& mine = block->copies[threadIdx.x];
  if ((threadIdx.x + mine.groups) % 2) mine.open.push_back({to, from, mine.groups});
  else std::memcpy(reinterpret_cast<void*>(to), from, 16);
}
inline void end_group() { ++block->copies[threadIdx.x].groups; }
template <int LATER>
void wait_groups() {
  Copies& mine = block->copies[threadIdx.x];
  std::vector<Copies::One> open;
  for (const auto& one : mine.open) {
    if (one.group + LATER < mine.groups) std::memcpy(reinterpret_cast<void*>(one.to), one.from, 16);
    else open.push_back(one);
  }
  mine.open = open;
}
}

template <typename To, typename From>
To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(To));
  return to;
}
inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return same_bits<float>(x); }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }

struct __half;
struct __nv_bfloat16 {
  uint16_t bits = 0;
  __nv_bfloat16() = default;
  explicit __nv_bfloat16(float x) {  // to the nearest, ties to even
    const unsigned whole = __float_as_uint(x);
    bits = (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
  }
  operator float() const { return __uint_as_float(unsigned(bits) << 16); }
};

// What a tensor core does for a warp: d = a b + d, a [16, 16], b [16, 8].
template <typename T>
void play_multiply(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const unsigned lane = threadIdx.x % 32, begin = threadIdx.x - lane, g = lane / 4, t = lane % 4;
  static unsigned as[1024][4], bs[1024][2];
  std::memcpy(as[threadIdx.x], a, sizeof(a));
  std::memcpy(bs[threadIdx.x], b, sizeof(b));
  block->meet(block->warps[threadIdx.x / 32]);
  const auto number = [](unsigned pair, int which) {
    T made;
    made.bits = which ? pair >> 16 : pair;
    return float(made);
  };
  for (int i = 0; i < 4; ++i) {
    const unsigned row = g + 8 * (i / 2), column = 2 * t + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned *of_a = as[begin + row % 8 * 4 + k % 8 / 2], *of_b = bs[begin + column * 4 + k % 8 / 2];
      d[i] += number(of_a[row / 8 + 2 * (k / 8)], k % 2) * number(of_b[k / 8], k % 2);
    }
  }
  block->meet(block->warps[threadIdx.x / 32]);
}
