// Between the emulator's runtime and a compiled kernel.
#pragma once

namespace emu {

enum Order : unsigned { FORWARD, REVERSE, SHUFFLED };

// Where the running thread stands.
struct Position {
  unsigned lane, simdgroup, index, size, group[3];
};
extern Position position;

void entry(void** arrays);  // generated: calls the kernel for the running thread

}  // namespace emu
