// Products of three tiles at a time, twelve outputs x 32 lanes in 24 accumulators: fewer loads and
// instructions per product than a tile alone, which matters most where another process shares the
// core. Included inside a unit's namespace, after avx512_isa.h and matrix.h.

constexpr int kRows = 12;   // outputs that are multiplied at a time
constexpr int kWords = 24;  // and of how many words of inputs at least: with few it gains nothing

// clang-format off
#define EGG_EACH(X)                                                   \
  X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) \
  X(13) X(14) X(15) X(16) X(17) X(18) X(19) X(20) X(21) X(22) X(23)
#define EGG_REGISTER(i) register __m512i r##i asm("zmm" #i);
#define EGG_SUM(i) , "=v"(r##i)
#define EGG_TAKE(i) v[i].v = r##i;
#define EGG_WORD(at, of, to) "vpbroadcastd " #at "(%[" #of "],%[n]), %%zmm" #to "\n\t"
#define EGG_FIRST(at, of, a, b) EGG_WORD(at, of, a) "vmovdqa64 %%zmm" #a ", %%zmm" #b "\n\t"
#define EGG_INPUT(at, to) "vmovdqu32 " #at "(%[x],%[n],4), %%zmm" #to "\n\t"
#define EGG_PRODUCTS(w, a, b)                        \
  "vpdpbusd %%zmm" #w ", %%zmm24, %%zmm" #a "\n\t" \
  "vpdpbusd %%zmm" #w ", %%zmm25, %%zmm" #b "\n\t"
// clang-format on

// Sums of three times four rows whose weights end at `ends`, 32 bytes apart, their biases before
// them: v[o] of lanes 0 .. 15, v[kRows + o] of the others. One counter leads weights and inputs up
// to their ends, as in Avx512Isa::multiply.
static inline __attribute__((always_inline)) void multiply_rows(const int8_t* const* ends,
                                                                const uint32_t* x, int words,
                                                                V512* v) {
  const uint32_t* end = x + words * long{kLanes};
  long n = words * -4l * kTile;
  // clang-format off
  EGG_EACH(EGG_REGISTER)
  asm volatile(
      EGG_FIRST(-32, p, 0, 12) EGG_FIRST(-28, p, 1, 13)
      EGG_FIRST(-24, p, 2, 14) EGG_FIRST(-20, p, 3, 15)
      EGG_FIRST(-32, q, 4, 16) EGG_FIRST(-28, q, 5, 17)
      EGG_FIRST(-24, q, 6, 18) EGG_FIRST(-20, q, 7, 19)
      EGG_FIRST(-32, r, 8, 20) EGG_FIRST(-28, r, 9, 21)
      EGG_FIRST(-24, r, 10, 22) EGG_FIRST(-20, r, 11, 23)
      "1:\n\t"
      EGG_INPUT(0, 24) EGG_INPUT(64, 25)
      EGG_WORD(0, p, 26) EGG_WORD(4, p, 27)
      EGG_WORD(8, p, 28) EGG_WORD(12, p, 29)
      EGG_PRODUCTS(26, 0, 12) EGG_PRODUCTS(27, 1, 13)
      EGG_PRODUCTS(28, 2, 14) EGG_PRODUCTS(29, 3, 15)
      EGG_WORD(0, q, 30) EGG_WORD(4, q, 31)
      EGG_WORD(8, q, 26) EGG_WORD(12, q, 27)
      EGG_PRODUCTS(30, 4, 16) EGG_PRODUCTS(31, 5, 17)
      EGG_PRODUCTS(26, 6, 18) EGG_PRODUCTS(27, 7, 19)
      EGG_WORD(0, r, 28) EGG_WORD(4, r, 29)
      EGG_WORD(8, r, 30) EGG_WORD(12, r, 31)
      EGG_PRODUCTS(28, 8, 20) EGG_PRODUCTS(29, 9, 21)
      EGG_PRODUCTS(30, 10, 22) EGG_PRODUCTS(31, 11, 23)
      "add $32, %[n]\n\t"
      "jnz 1b\n\t"
      : [n] "+r"(n) EGG_EACH(EGG_SUM)
      : [x] "r"(end), [p] "r"(ends[0]), [q] "r"(ends[1]), [r] "r"(ends[2])
      : "zmm24", "zmm25", "zmm26", "zmm27", "zmm28", "zmm29", "zmm30", "zmm31", "cc", "memory");
  EGG_EACH(EGG_TAKE)
  // clang-format on
}

#undef EGG_EACH
#undef EGG_REGISTER
#undef EGG_SUM
#undef EGG_TAKE
#undef EGG_WORD
#undef EGG_FIRST
#undef EGG_INPUT
#undef EGG_PRODUCTS

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
