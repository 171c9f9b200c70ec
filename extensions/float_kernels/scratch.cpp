#include "scratch.h"

#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>

namespace float_kernels_impl {
namespace {

struct Free {
  void operator()(float* p) const { ::operator delete(p, std::align_val_t{64}); }
};
struct Buffer {
  std::unique_ptr<float, Free> floats;
  size_t size = 0;
};
thread_local Buffer buffers[2];

}  // namespace

float* scratch(int which, size_t floats) {
  Buffer& b = buffers[which];
  if (b.size < floats) {
    b.floats.reset();
    b.floats.reset(
        static_cast<float*>(::operator new(floats * sizeof(float), std::align_val_t{64})));
    b.size = floats;
  }
  return b.floats.get();
}

double seconds_now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace float_kernels_impl
