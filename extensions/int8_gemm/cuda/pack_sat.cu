// Four bytes as a word: by the instruction that saturates two and puts them below two others.

namespace egg {

// Bytes below 127 and -128 become these.
__device__ inline uint32_t two_below(uint32_t above, int high, int low) {
  uint32_t v;
  asm("cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;" : "=r"(v) : "r"(high), "r"(low), "r"(above));
  return v;
}

// Values that are bytes.
__device__ inline uint32_t packed(int a, int b, int c, int d) {
  return two_below(two_below(0, d, c), b, a);
}

// clip of each. The instruction's lower end is -128, which is none of ours.
__device__ inline uint32_t clipped(int a, int b, int c, int d) {
  return packed(max(a, -127), max(b, -127), max(c, -127), max(d, -127));
}

// Integers of 16 bits likewise, two of them.
__device__ inline uint32_t two_halves(int high, int low) {
  uint32_t v;
  asm("cvt.pack.sat.s16.s32 %0, %1, %2;" : "=r"(v) : "r"(high), "r"(low));
  return v;
}

// clip(floor(v / 256)) of each: the upper bytes of halves.
__device__ inline uint32_t clipped_256ths(const int (&v)[4]) {
  const uint32_t low = __vmaxs2(two_halves(v[1], v[0]), 0x81008100u);  // -127 * 256, twice
  const uint32_t high = __vmaxs2(two_halves(v[3], v[2]), 0x81008100u);
  return __byte_perm(low, high, 0x7531);
}

__device__ inline uint32_t clipped(const int (&v)[4]) { return clipped(v[0], v[1], v[2], v[3]); }

}  // namespace egg
