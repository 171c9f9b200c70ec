// Products of three tiles at a time, twelve outputs x 32 lanes in 24 accumulators: fewer
// instructions per product than a tile alone, which matters where another process shares a core's
// front end. Included inside a unit's namespace, after avx512_isa.h and matrix.h.

constexpr int kRows = 12;   // outputs that are multiplied at a time
constexpr int kWords = 24;  // and of how many words of inputs at least: with few it gains nothing

// Sums of three times four rows whose weights end at `ends`, their biases before them: v[o] of
// lanes 0 .. 15, v[kRows + o] of the others. Most weights are broadcast by the products themselves:
// those would take as many loads as two ports have, a register for every four rows does not.
static inline __attribute__((always_inline)) void multiply_rows(const int8_t* const* ends,
                                                                const uint32_t* x, int words,
                                                                V512* v) {
  const uint32_t* end = x + words * long{kLanes};
  long n = words * -4l * kTile;  // counts both ends up to zero, as in Avx512Isa::multiply
  register __m512i r0 asm("zmm0");
  register __m512i r1 asm("zmm1");
  register __m512i r2 asm("zmm2");
  register __m512i r3 asm("zmm3");
  register __m512i r4 asm("zmm4");
  register __m512i r5 asm("zmm5");
  register __m512i r6 asm("zmm6");
  register __m512i r7 asm("zmm7");
  register __m512i r8 asm("zmm8");
  register __m512i r9 asm("zmm9");
  register __m512i r10 asm("zmm10");
  register __m512i r11 asm("zmm11");
  register __m512i r12 asm("zmm12");
  register __m512i r13 asm("zmm13");
  register __m512i r14 asm("zmm14");
  register __m512i r15 asm("zmm15");
  register __m512i r16 asm("zmm16");
  register __m512i r17 asm("zmm17");
  register __m512i r18 asm("zmm18");
  register __m512i r19 asm("zmm19");
  register __m512i r20 asm("zmm20");
  register __m512i r21 asm("zmm21");
  register __m512i r22 asm("zmm22");
  register __m512i r23 asm("zmm23");
  asm volatile(
      "vpbroadcastd -32(%[p],%[n]), %%zmm0\n\t"
      "vpbroadcastd -28(%[p],%[n]), %%zmm1\n\t"
      "vpbroadcastd -24(%[p],%[n]), %%zmm2\n\t"
      "vpbroadcastd -20(%[p],%[n]), %%zmm3\n\t"
      "vpbroadcastd -32(%[q],%[n]), %%zmm4\n\t"
      "vpbroadcastd -28(%[q],%[n]), %%zmm5\n\t"
      "vpbroadcastd -24(%[q],%[n]), %%zmm6\n\t"
      "vpbroadcastd -20(%[q],%[n]), %%zmm7\n\t"
      "vpbroadcastd -32(%[r],%[n]), %%zmm8\n\t"
      "vpbroadcastd -28(%[r],%[n]), %%zmm9\n\t"
      "vpbroadcastd -24(%[r],%[n]), %%zmm10\n\t"
      "vpbroadcastd -20(%[r],%[n]), %%zmm11\n\t"
      "vmovdqa64 %%zmm0, %%zmm12\n\t"
      "vmovdqa64 %%zmm1, %%zmm13\n\t"
      "vmovdqa64 %%zmm2, %%zmm14\n\t"
      "vmovdqa64 %%zmm3, %%zmm15\n\t"
      "vmovdqa64 %%zmm4, %%zmm16\n\t"
      "vmovdqa64 %%zmm5, %%zmm17\n\t"
      "vmovdqa64 %%zmm6, %%zmm18\n\t"
      "vmovdqa64 %%zmm7, %%zmm19\n\t"
      "vmovdqa64 %%zmm8, %%zmm20\n\t"
      "vmovdqa64 %%zmm9, %%zmm21\n\t"
      "vmovdqa64 %%zmm10, %%zmm22\n\t"
      "vmovdqa64 %%zmm11, %%zmm23\n\t"
      "1:\n\t"
      "vmovdqu32 (%[x],%[n],4), %%zmm24\n\t"
      "vmovdqu32 64(%[x],%[n],4), %%zmm25\n\t"
      "vpbroadcastd 0(%[p],%[n]), %%zmm26\n\t"
      "vpbroadcastd 4(%[p],%[n]), %%zmm27\n\t"
      "vpbroadcastd 8(%[p],%[n]), %%zmm28\n\t"
      "vpbroadcastd 12(%[p],%[n]), %%zmm29\n\t"
      "vpdpbusd %%zmm26, %%zmm24, %%zmm0\n\t"
      "vpdpbusd %%zmm26, %%zmm25, %%zmm12\n\t"
      "vpdpbusd %%zmm27, %%zmm24, %%zmm1\n\t"
      "vpdpbusd %%zmm27, %%zmm25, %%zmm13\n\t"
      "vpdpbusd %%zmm28, %%zmm24, %%zmm2\n\t"
      "vpdpbusd %%zmm28, %%zmm25, %%zmm14\n\t"
      "vpdpbusd %%zmm29, %%zmm24, %%zmm3\n\t"
      "vpdpbusd %%zmm29, %%zmm25, %%zmm15\n\t"
      "vpbroadcastd 0(%[q],%[n]), %%zmm30\n\t"
      "vpbroadcastd 4(%[q],%[n]), %%zmm31\n\t"
      "vpbroadcastd 8(%[q],%[n]), %%zmm26\n\t"
      "vpbroadcastd 12(%[q],%[n]), %%zmm27\n\t"
      "vpdpbusd %%zmm30, %%zmm24, %%zmm4\n\t"
      "vpdpbusd %%zmm30, %%zmm25, %%zmm16\n\t"
      "vpdpbusd %%zmm31, %%zmm24, %%zmm5\n\t"
      "vpdpbusd %%zmm31, %%zmm25, %%zmm17\n\t"
      "vpdpbusd %%zmm26, %%zmm24, %%zmm6\n\t"
      "vpdpbusd %%zmm26, %%zmm25, %%zmm18\n\t"
      "vpdpbusd %%zmm27, %%zmm24, %%zmm7\n\t"
      "vpdpbusd %%zmm27, %%zmm25, %%zmm19\n\t"
      "vpbroadcastd 0(%[r],%[n]), %%zmm28\n\t"
      "vpbroadcastd 4(%[r],%[n]), %%zmm29\n\t"
      "vpbroadcastd 8(%[r],%[n]), %%zmm30\n\t"
      "vpbroadcastd 12(%[r],%[n]), %%zmm31\n\t"
      "vpdpbusd %%zmm28, %%zmm24, %%zmm8\n\t"
      "vpdpbusd %%zmm28, %%zmm25, %%zmm20\n\t"
      "vpdpbusd %%zmm29, %%zmm24, %%zmm9\n\t"
      "vpdpbusd %%zmm29, %%zmm25, %%zmm21\n\t"
      "vpdpbusd %%zmm30, %%zmm24, %%zmm10\n\t"
      "vpdpbusd %%zmm30, %%zmm25, %%zmm22\n\t"
      "vpdpbusd %%zmm31, %%zmm24, %%zmm11\n\t"
      "vpdpbusd %%zmm31, %%zmm25, %%zmm23\n\t"
      "add $32, %[n]\n\t"
      "jnz 1b\n\t"
      : [n] "+r"(n), "=v"(r0), "=v"(r1), "=v"(r2), "=v"(r3), "=v"(r4), "=v"(r5), "=v"(r6), "=v"(r7),
        "=v"(r8), "=v"(r9), "=v"(r10), "=v"(r11), "=v"(r12), "=v"(r13), "=v"(r14), "=v"(r15),
        "=v"(r16), "=v"(r17), "=v"(r18), "=v"(r19), "=v"(r20), "=v"(r21), "=v"(r22), "=v"(r23)
      : [x] "r"(end), [p] "r"(ends[0]), [q] "r"(ends[1]), [r] "r"(ends[2])
      : "zmm24", "zmm25", "zmm26", "zmm27", "zmm28", "zmm29", "zmm30", "zmm31", "cc", "memory");
  v[0].v = r0;
  v[1].v = r1;
  v[2].v = r2;
  v[3].v = r3;
  v[4].v = r4;
  v[5].v = r5;
  v[6].v = r6;
  v[7].v = r7;
  v[8].v = r8;
  v[9].v = r9;
  v[10].v = r10;
  v[11].v = r11;
  v[12].v = r12;
  v[13].v = r13;
  v[14].v = r14;
  v[15].v = r15;
  v[16].v = r16;
  v[17].v = r17;
  v[18].v = r18;
  v[19].v = r19;
  v[20].v = r20;
  v[21].v = r21;
  v[22].v = r22;
  v[23].v = r23;
}

struct Avx512Matrix : TileMatrix {
  template <typename Place, typename Done>
  static inline __attribute__((always_inline)) void product(const int8_t* w, const Isa::Prepared* x,
                                                            int words, int tiles, LowRank noise,
                                                            const Scale& by, Place place,
                                                            Done done) {
    const size_t size = Isa::tile_bytes(words);
    int i = 0;
    const bool many = noise.rank <= 1 && words >= kWords;
    for (; many && i + 3 <= tiles; i += 3, w += 3 * size) {
      // The first tile and half of the second, then the other half and the third.
      for (int half = 0; half < 2; ++half) {
        const int8_t* ends[3];
        uint32_t* out[3];
        for (int four = 0; four < 3; ++four) {
          const int tile = (3 * half + four) / 2, rest = (3 * half + four) % 2;
          ends[four] = w + (tile + 1) * size + rest * 16;
          out[four] = place(i + tile)[rest];
        }
        V512 v[2 * kRows];
        multiply_rows(ends, x, words, v);
        Isa::finish<kRows>(v, noise, half * kRows, by, [&](int o) { return out[o / 4]; });
        done(i + half);
      }
      done(i + 2);
      if (noise.pairs) noise.pairs += 3 * kTile / 2 * kPairs;
      if (noise.node) noise.node += 3 * kTile * kPairs;
    }
    TileMatrix::product(
        w, x, words, tiles - i, noise, by, [&](int j) { return place(i + j); },
        [&](int j) { done(i + j); });
  }
};
