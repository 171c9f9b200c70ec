// c += a b of 16 x 32 and 32 x 8 bytes, from four products of 8 x 16 and 16 x 8: sm_75.

namespace egg {

__device__ inline void mma_quarter(int& even, int& odd, uint32_t a, uint32_t b) {
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+r"(even), "+r"(odd)
               : "r"(a), "r"(b));
}

__device__ inline void mma(int (&c)[4], uint4 a, uint2 b) {
  mma_quarter(c[0], c[1], a.x, b.x);
  mma_quarter(c[2], c[3], a.y, b.x);
  mma_quarter(c[0], c[1], a.z, b.y);
  mma_quarter(c[2], c[3], a.w, b.y);
}

}  // namespace egg
