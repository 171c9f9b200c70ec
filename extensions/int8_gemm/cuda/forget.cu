// y = ((f + 127) s) >> 8

namespace egg {

__device__ inline int forget(int f, int s) { return ((f + 127) * s) >> 8; }

}  // namespace egg
