// What replay.cpp and kernels.cpp share: the units this machine can run, and memory for them.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "dispatch.h"
#include "program.h"

#ifdef EGG_REPLAY_AVXVNNI
// Compiled with AVX-512's encoding of its instructions, so dispatch does not list it here.
namespace eggroll::avxvnni {
extern const Kernels kernels;
}
#endif

#ifdef EGG_PLAIN_TILES
// The unit of AMX with tiles in plain C++: see isa_amx_plain.cpp.
namespace eggroll::amx_plain {
extern const Kernels kernels;
}
#endif

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
#ifdef EGG_PLAIN_TILES
  all.push_back(&eggroll::amx_plain::kernels);
#endif
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
