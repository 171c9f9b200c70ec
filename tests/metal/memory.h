// The arrays of a launch: where they lie, and who may read and write them when.
#pragma once
#include <stddef.h>

namespace emu {

enum { DEVICE_MEMORY = 1, THREADGROUP_MEMORY = 2 };  // as mem_flags has them
// In device memory: only read; written from end to end; for the kernel's own use. In threadgroup
// memory.
enum Kind { INPUT, OUTPUT, SCRATCH, SHARED };

// Room for an array of a launch in device memory, filled with garbage.
void* take(Kind kind, const char* name, size_t bytes, int garbage);

// An array in threadgroup memory, of which it is bytes begin .. begin + bytes - 1.
void* take_shared(const char* name, size_t begin, size_t bytes);

// The kernel was loaded; this lies in it. It may read what lies there, besides arrays.
void kernel_has(const void* entry);

void begin_launch();  // the arrays of the last one are gone
void end_launch();
// So are those in threadgroup memory, of which there are so many bytes, filled with garbage.
void begin_threadgroup(size_t shared_bytes, int garbage);

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
