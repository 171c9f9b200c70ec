// Between the emulator's runtime and a compiled kernel.
#pragma once

namespace emu {

enum Order : unsigned { FORWARD, REVERSE, SHUFFLED };

// Where the running thread stands.
struct Position {
  unsigned lane, simdgroup, index, size, group[3];
};
extern Position position;

// Tells count.cpp where an array lies: an input or output by its number, or one that is shared.
void lies_at(const char* name, const void* block, unsigned long bytes);

void entry(void** arrays);  // generated: calls the kernel for the running thread

}  // namespace emu
