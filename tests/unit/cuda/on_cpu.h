// CUDA's words on a CPU: the threads of one block are fibers that take turns, blocks run one after the other.
#pragma once
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
inline Place threadIdx, blockIdx, blockDim;
struct Shape { int sizes[8]; int operator[](int i) const { return sizes[i]; } };

struct Barrier { unsigned members = 0, arrived = 0, round = 0; };

struct Block {
  static constexpr size_t STACK = 1 << 16;
  std::vector<ucontext_t> fibers;
  std::vector<bool> done;
  std::vector<Barrier> warps;
  std::vector<uint64_t> lanes;
  Barrier all;
  ucontext_t main;
  std::function<void()> body;
  std::vector<unsigned> counts, calls;  // of each __syncthreads_count; how many each thread has made

  void pause() { swapcontext(&fibers[threadIdx.x], &main); }

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
}

inline void launch(unsigned blocks, unsigned threads, std::function<void()> body) {
  blockDim.x = threads;
  std::unique_ptr<char[]> stacks(new char[threads * Block::STACK]);
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
    Block one;
    block = &one;
    one.body = body;
    one.fibers.resize(threads);
    one.done.resize(threads);
    one.lanes.resize(threads);
    one.calls.resize(threads);
    one.all.members = threads;
    one.warps.resize((threads + 31) / 32);
    for (unsigned t = 0; t < threads; ++t) {
      ++one.warps[t / 32].members;
      getcontext(&one.fibers[t]);
      one.fibers[t].uc_stack.ss_sp = stacks.get() + t * Block::STACK;
      one.fibers[t].uc_stack.ss_size = Block::STACK;
      one.fibers[t].uc_link = &one.main;
      makecontext(&one.fibers[t], enter, 0);
    }
    for (unsigned left = threads; left > 0;) {
      for (unsigned t = 0; t < threads; ++t) {
        if (one.done[t]) continue;
        threadIdx.x = t;
        swapcontext(&one.main, &one.fibers[t]);
        left -= one.done[t];
      }
    }
  }
}

inline void __syncthreads() { block->meet(block->all); }

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
  Barrier& warp = block->warps[self / 32];
  std::memcpy(&block->lanes[self], &value, sizeof(T));
  block->meet(warp);
  T other;
  std::memcpy(&other, &block->lanes[self ^ mask], sizeof(T));
  block->meet(warp);
  return other;
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
