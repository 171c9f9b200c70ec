// What replay.cpp and kernels.cpp share: the units this machine can run, and memory for them.
#pragma once

#include <cstdlib>
#include <string>
#include <vector>

#include "dispatch.h"

#ifdef EGG_REPLAY_AVXVNNI
// Compiled with AVX-512's encoding of its instructions, so dispatch does not list it here.
namespace eggroll::avxvnni {
extern const Kernels kernels;
}
#endif

// Every unit that can run here, fastest first; chosen by name, as a user would.
inline std::vector<const eggroll::Kernels*> runnable_units() {
  std::vector<const eggroll::Kernels*> all;
  for (const std::string& isa : eggroll::usable_isas()) {
    setenv("EGGROLL_ISA", isa.c_str(), 1);
    all.push_back(&eggroll::kernels());
  }
#ifdef EGG_REPLAY_AVXVNNI
  all.push_back(&eggroll::avxvnni::kernels);
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
