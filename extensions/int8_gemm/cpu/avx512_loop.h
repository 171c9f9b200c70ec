// The loop of AVX-512's products, in assembly because gcc spills accumulators of the same loop
// written with intrinsics. Included by avx512_isa.h.

// clang-format off
#define EGG_FIRST(at, a, b) \
  "vpbroadcastd " #at "(%[s]), %%zmm" #a "\n\tvmovdqa64 %%zmm" #a ", %%zmm" #b "\n\t"
#define EGG_WEIGHT(at, to) "vpbroadcastd " #at "(%[w],%[n]), %%zmm" #to "\n\t"
#define EGG_PRODUCTS(w, a, b)                      \
  "vpdpbusd %%zmm" #w ", %%zmm16, %%zmm" #a "\n\t" \
  "vpdpbusd %%zmm" #w ", %%zmm17, %%zmm" #b "\n\t"

// x.B of the lanes: its biases, a word of every lane, and where the sums go.
#define EGG_DOTS_BEGIN "vmovdqu32 (%[biases]), %%zmm26\n\tvmovdqa64 %%zmm26, %%zmm27\n\t"
#define EGG_DOTS "vmovdqu32 (%[b],%[n],2), %%zmm28\n\t" EGG_PRODUCTS(28, 26, 27)
#define EGG_DOTS_END "vmovdqu32 %%zmm26, (%[dots])\n\tvmovdqu32 %%zmm27, 64(%[dots])\n\t"

// Products of a tile at s, whose weights end at w, with inputs that end at x; n counts up to zero
// and addresses both: other counting would take the ports of the products. Weights are asked for
// 32 rounds ahead: where a part has more of them than the first cache holds, products would wait
// for the second. `begin`, `round` and `end` are what is done beside them, whose operands follow.
#define EGG_LOOP(begin, round, end, ...)                                                          \
  asm volatile(                                                                                   \
      EGG_FIRST(0, 0, 8) EGG_FIRST(4, 1, 9) EGG_FIRST(8, 2, 10) EGG_FIRST(12, 3, 11)              \
      EGG_FIRST(16, 4, 12) EGG_FIRST(20, 5, 13) EGG_FIRST(24, 6, 14) EGG_FIRST(28, 7, 15) begin   \
      "1:\n\t"                                                                                    \
      "vmovdqu32 (%[x],%[n],4), %%zmm16\n\t"                                                      \
      "vmovdqu32 64(%[x],%[n],4), %%zmm17\n\t"                                                    \
      EGG_WEIGHT(0, 18) EGG_WEIGHT(4, 19) EGG_WEIGHT(8, 20) EGG_WEIGHT(12, 21)                    \
      "prefetcht0 1024(%[w],%[n])\n\t"                                                            \
      EGG_PRODUCTS(18, 0, 8) EGG_PRODUCTS(19, 1, 9) EGG_PRODUCTS(20, 2, 10)                       \
      EGG_PRODUCTS(21, 3, 11)                                                                     \
      EGG_WEIGHT(16, 22) EGG_WEIGHT(20, 23) EGG_WEIGHT(24, 24) EGG_WEIGHT(28, 25)                 \
      EGG_PRODUCTS(22, 4, 12) EGG_PRODUCTS(23, 5, 13) EGG_PRODUCTS(24, 6, 14)                     \
      EGG_PRODUCTS(25, 7, 15) round                                                               \
      "add $32, %[n]\n\t"                                                                         \
      "jnz 1b\n\t" end                                                                            \
      : [n] "+r"(n), "=v"(a0), "=v"(b0), "=v"(a1), "=v"(b1), "=v"(a2), "=v"(b2), "=v"(a3),        \
        "=v"(b3), "=v"(a4), "=v"(b4), "=v"(a5), "=v"(b5), "=v"(a6), "=v"(b6), "=v"(a7), "=v"(b7)  \
      : [s] "r"(tile), [x] "r"(x + words * long{kLanes}),                                         \
        [w] "r"(tile + kTile * sizeof(int32_t) + words * 4l * kTile) __VA_OPT__(, ) __VA_ARGS__   \
      : "zmm16", "zmm17", "zmm18", "zmm19", "zmm20", "zmm21", "zmm22", "zmm23", "zmm24", "zmm25", \
        "zmm26", "zmm27", "zmm28", "cc", "memory")
// clang-format on
