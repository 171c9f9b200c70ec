// The arrays of a launch: where they lie, and who may read and write them when.
#pragma once
#include <stddef.h>

namespace emu {

enum { DEVICE_MEMORY = 1, THREADGROUP_MEMORY = 2 };  // as mem_flags has them
// In device memory: only read; written from end to end; for the kernel's own use. In threadgroup
// memory.
enum Kind { INPUT, OUTPUT, SCRATCH, SHARED };

// Room for an array of a launch, or of a threadgroup if it is shared, filled with garbage.
void* take(Kind kind, const char* name, size_t bytes, int garbage);

void begin_launch();  // the arrays of the last one are gone
void end_launch();
void begin_threadgroup();  // so are those that were shared

// What comes after is ordered behind what came before, in these kinds of memory: for all
// threads, or for the lanes of one simdgroup.
void order_threads(unsigned flags);
void order_lanes(unsigned simdgroup, unsigned flags);

// From now on this thread, with this stack, reads and writes.
void begin_thread(unsigned thread, const char* stack, size_t bytes);

// Some lane of the simdgroup reads these bytes for all of them.
void read_by_any_lane(const void* from, size_t bytes);

[[noreturn]] void fail(const char* why);

}  // namespace emu
