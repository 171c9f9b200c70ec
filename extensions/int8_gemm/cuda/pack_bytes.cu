// Four bytes as a word, where no instruction does it: below sm_72.

namespace egg {

// Values that are bytes.
__device__ inline uint32_t packed(int a, int b, int c, int d) {
  return as_byte(a, 0) | as_byte(b, 1) | as_byte(c, 2) | as_byte(d, 3);
}

// clip of each.
__device__ inline uint32_t clipped(int a, int b, int c, int d) {
  return packed(clip(a), clip(b), clip(c), clip(d));
}

// clip(floor(v / 256)) of each.
__device__ inline uint32_t clipped_256ths(const int (&v)[4]) {
  return clipped(v[0] >> 8, v[1] >> 8, v[2] >> 8, v[3] >> 8);
}

__device__ inline uint32_t clipped(const int (&v)[4]) { return clipped(v[0], v[1], v[2], v[3]); }

}  // namespace egg
