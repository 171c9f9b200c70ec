// What programs that compare units share: those this machine can run, memory for them, and blocks.
#pragma once

#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <latch>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dispatch.h"
#include "program.h"

#ifdef EGG_REPLAY_AVXVNNI
// Compiled with AVX-512's encoding of its instructions, so dispatch does not list it here.
namespace eggroll::avxvnni {
extern const Kernels kernels;
}
#endif

// Units of AMX with tiles in plain C++, see isa_amx_plain.cpp and isa_amx_avx512.cpp.
#define EGG_DECLARE_TILES(unit)                                  \
  namespace eggroll::unit {                                      \
  extern const Kernels kernels;                                  \
  bool tiles_open(); /* of this thread */                        \
  void take_tiles(); /* from this thread, as others' code may */ \
  }
EGG_DECLARE_TILES(amx_plain)
EGG_DECLARE_TILES(amx_avx512)

struct PlainTiles {
  const eggroll::Kernels* unit;
  bool (*open)();
  void (*take)();
};

// Those that were built.
constexpr std::initializer_list<PlainTiles> kPlainTiles = {
#ifdef EGG_PLAIN_TILES
    {&eggroll::amx_plain::kernels, eggroll::amx_plain::tiles_open, eggroll::amx_plain::take_tiles},
#endif
#ifdef EGG_PLAIN_TILES_AVX512
    {&eggroll::amx_avx512::kernels, eggroll::amx_avx512::tiles_open,
     eggroll::amx_avx512::take_tiles},
#endif
};

// Every unit that can run here, fastest first and chosen by name, as a user would; then those
// that only tests have.
inline std::vector<const eggroll::Kernels*> runnable_units() {
  std::vector<const eggroll::Kernels*> all;
  for (const std::string& isa : eggroll::usable_isas()) {
    setenv("EGGROLL_ISA", isa.c_str(), 1);
    all.push_back(&eggroll::kernels());
  }
#ifdef EGG_REPLAY_AVXVNNI
  all.push_back(&eggroll::avxvnni::kernels);
#endif
  for (const PlainTiles& tiles : kPlainTiles) all.push_back(tiles.unit);
  return all;
}

// Exactly the bytes asked for, so that AddressSanitizer sees a step beyond them.
struct Scratch {
  void* p;
  explicit Scratch(size_t bytes) : p(std::aligned_alloc(64, (bytes + 63) / 64 * 64)) {}
  ~Scratch() { std::free(p); }
  Scratch(const Scratch&) = delete;
};

// Weights as one unit has them: leaf by leaf, in exactly the bytes that it asks for.
struct Packed : Scratch {
  Packed(const eggroll::Program& program, const eggroll::Kernels& k,
         const std::vector<std::vector<int8_t>>& leaves)
      : Scratch(static_cast<size_t>(program.packed_bytes(k))) {
    std::memset(p, 0, static_cast<size_t>(program.packed_bytes(k)));
    for (size_t i = 0; i < leaves.size(); ++i)
      program.pack(k, static_cast<int>(i), leaves[i].data(), static_cast<int8_t*>(p));
  }
  const int8_t* weights() const { return static_cast<const int8_t*>(p); }
};

// Leaves this thread without the tiles that a block may have opened.
inline void take_tiles() {
  for (const PlainTiles& tiles : kPlainTiles) tiles.take();
}

// Throws if this thread has tiles that no block has closed.
inline void check_tiles(const eggroll::Kernels& k) {
  for (const PlainTiles& tiles : kPlainTiles)
    if (tiles.open()) throw std::logic_error(std::string(k.name) + " left its tiles open");
}

inline void run_block(const eggroll::Kernels& k, const eggroll::Job& job, int64_t block,
                      void* scratch) {
  k.block(job, block, scratch);
  check_tiles(k);
}

inline void run_vote(const eggroll::Kernels& k, const eggroll::VoteJob& job, int64_t first,
                     int64_t last, int32_t* z, void* scratch) {
  k.vote(job, first, last, z, scratch);
  check_tiles(k);
}

inline int64_t blocks_of(const eggroll::Job& job) {
  return (job.members + eggroll::kLanes - 1) / eggroll::kLanes;
}

// All blocks of a job, one after another.
inline void run_blocks(const eggroll::Kernels& k, const eggroll::Job& job) {
  Scratch scratch(k.block_bytes(job));
  for (int64_t b = 0; b < blocks_of(job); ++b) run_block(k, job, b, scratch.p);
}

// All at once, each in a thread that has run none before.
inline void run_blocks_at_once(const eggroll::Kernels& k, const eggroll::Job& job) {
  std::vector<std::thread> threads;
  std::latch ready(blocks_of(job));
  for (int64_t b = 0; b < blocks_of(job); ++b)
    threads.emplace_back([&, b] {
      Scratch scratch(k.block_bytes(job));
      ready.arrive_and_wait();
      run_block(k, job, b, scratch.p);
    });
  for (std::thread& thread : threads) thread.join();
}
