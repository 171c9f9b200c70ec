// y = s + (((f + 127) (h - s)) >> 8)

namespace egg {

__device__ inline int mix(int f, int h, int s) { return s + (((f + 127) * (h - s)) >> 8); }

}  // namespace egg
