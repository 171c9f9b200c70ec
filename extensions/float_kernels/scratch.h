// Memory that a thread keeps for copies of panels, and the pool of threads.
#pragma once

#include <cstddef>

namespace float_kernels_impl {

// The calling thread's buffer 0 or 1: at least `floats`, at a multiple of 64 bytes.
float* scratch(int which, size_t floats);

// Calls part(context, i) for i in 0 .. parts - 1, on up to `threads` threads, and waits for all.
void in_parallel(int threads, int parts, void (*part)(void* context, int i), void* context);

// Seconds of a clock that only goes forward.
double seconds_now();

}  // namespace float_kernels_impl
