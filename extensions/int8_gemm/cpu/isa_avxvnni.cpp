// AVX-VNNI: unsigned x signed dot products of four bytes in 256 bits, for processors without
// AVX-512. See VnniIsa for the bias.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::avxvnni {
#include "x86.h"

// The same instruction in AVX-512's encoding runs where the tests have AVX-512 only.
#ifdef __AVXVNNI__
#define EGG_DPBUSD _mm256_dpbusd_avx_epi32
#define EGG_DPBUSD_TEXT "%{vex%} vpdpbusd"
#else
#define EGG_DPBUSD _mm256_dpbusd_epi32
#define EGG_DPBUSD_TEXT "vpdpbusd"
#endif

// Lines of the loops below, which are assembly because gcc spills the accumulators of the same
// loops written with intrinsics.
#define EGG_FIRST(at, to, too) "vpbroadcastd " #at "(%[s]), %%ymm" #to "\n\t" EGG_COPY(to, too)
#define EGG_COPY(from, to) "vmovdqa %%ymm" #from ", %%ymm" #to "\n\t"
#define EGG_INPUT(at, to) "vmovdqa " #at "(%[x],%[n],4), %%ymm" #to "\n\t"
#define EGG_WEIGHT(at, to) "vpbroadcastd " #at "(%[w],%[n]), %%ymm" #to "\n\t"
#define EGG_PRODUCT(w, x, to) EGG_DPBUSD_TEXT " %%ymm" #w ", %%ymm" #x ", %%ymm" #to "\n\t"
#define EGG_STORE(from, at) "vmovdqa %%ymm" #from ", " #at "(%[to])\n\t"
#define EGG_ALL                                                                            \
  "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", \
      "ymm11", "ymm12", "ymm13", "ymm14", "ymm15"

struct Isa : Avx2Elements<VnniIsa> {
  static constexpr bool kPairsOfOutputs = true;

  // Six outputs x 16 lanes in twelve accumulators, as two ports wait five cycles for each product;
  // the last two outputs have eight.
  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    const int8_t* end = tile + tile_bytes(words);
    x += words * long{kLanes};
    for (int m = 0; m < kLanes; m += 16) six(tile, end, x + m, words, acc[0] + m);
    two(tile + 4 * 6, end + 4 * 6, x, words, acc[6]);
  }

  // Biases begin at s; weights w and inputs x end there, and one counter leads both there.
  static void six(const int8_t* s, const int8_t* w, const Prepared* x, int words, int32_t* to) {
    long n = words * -4l * kTile;
    // clang-format off
    asm volatile(
        EGG_FIRST(0, 0, 6) EGG_FIRST(4, 1, 7) EGG_FIRST(8, 2, 8)
        EGG_FIRST(12, 3, 9) EGG_FIRST(16, 4, 10) EGG_FIRST(20, 5, 11)
        "1:\n\t"
        EGG_INPUT(0, 12) EGG_INPUT(32, 13)
        EGG_WEIGHT(0, 14) EGG_PRODUCT(14, 12, 0) EGG_PRODUCT(14, 13, 6)
        EGG_WEIGHT(4, 15) EGG_PRODUCT(15, 12, 1) EGG_PRODUCT(15, 13, 7)
        EGG_WEIGHT(8, 14) EGG_PRODUCT(14, 12, 2) EGG_PRODUCT(14, 13, 8)
        EGG_WEIGHT(12, 15) EGG_PRODUCT(15, 12, 3) EGG_PRODUCT(15, 13, 9)
        EGG_WEIGHT(16, 14) EGG_PRODUCT(14, 12, 4) EGG_PRODUCT(14, 13, 10)
        EGG_WEIGHT(20, 15) EGG_PRODUCT(15, 12, 5) EGG_PRODUCT(15, 13, 11)
        "add $32, %[n]\n\t"
        "jnz 1b\n\t"
        EGG_STORE(0, 0) EGG_STORE(6, 32) EGG_STORE(1, 128) EGG_STORE(7, 160)
        EGG_STORE(2, 256) EGG_STORE(8, 288) EGG_STORE(3, 384) EGG_STORE(9, 416)
        EGG_STORE(4, 512) EGG_STORE(10, 544) EGG_STORE(5, 640) EGG_STORE(11, 672)
        : [n] "+r"(n)
        : [s] "r"(s), [x] "r"(x), [w] "r"(w), [to] "r"(to)
        : EGG_ALL, "cc", "memory");
    // clang-format on
  }

  // The same of two outputs x 32 lanes.
  static void two(const int8_t* s, const int8_t* w, const Prepared* x, int words, int32_t* to) {
    long n = words * -4l * kTile;
    // clang-format off
    asm volatile(
        EGG_FIRST(0, 0, 1) EGG_COPY(0, 2) EGG_COPY(0, 3)
        EGG_FIRST(4, 4, 5) EGG_COPY(4, 6) EGG_COPY(4, 7)
        "1:\n\t"
        EGG_INPUT(0, 8) EGG_INPUT(32, 9) EGG_INPUT(64, 10) EGG_INPUT(96, 11)
        EGG_WEIGHT(0, 12) EGG_PRODUCT(12, 8, 0) EGG_PRODUCT(12, 9, 1)
        EGG_PRODUCT(12, 10, 2) EGG_PRODUCT(12, 11, 3)
        EGG_WEIGHT(4, 13) EGG_PRODUCT(13, 8, 4) EGG_PRODUCT(13, 9, 5)
        EGG_PRODUCT(13, 10, 6) EGG_PRODUCT(13, 11, 7)
        "add $32, %[n]\n\t"
        "jnz 1b\n\t"
        EGG_STORE(0, 0) EGG_STORE(1, 32) EGG_STORE(2, 64) EGG_STORE(3, 96)
        EGG_STORE(4, 128) EGG_STORE(5, 160) EGG_STORE(6, 192) EGG_STORE(7, 224)
        : [n] "+r"(n)
        : [s] "r"(s), [x] "r"(x), [w] "r"(w), [to] "r"(to)
        : EGG_ALL, "cc", "memory");
    // clang-format on
  }

  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    for (int m = 0; m < kLanes; m += 8) {
      const uint32_t* n = b + m % kPairs;
      __m256i sum = load(n);
      for (int k = 0; k < words; ++k)
        sum = EGG_DPBUSD(sum, load(x + static_cast<size_t>(k) * kLanes + m), load(n += kPairs));
      store(out + m, sum);
    }
  }

  template <bool>
  static void tile(const int8_t* w, const Prepared* x, int words, const LowRank& noise,
                   const Scale& by, uint32_t (*out)[kLanes]) {
    tile_by<Isa, Epilogue<V256>>(w, x, words, noise, by, out);
  }

  static int64_t peak(int64_t rounds) {
    int64_t n = rounds;
    // clang-format off
    asm volatile(
        "1:\n\t"
        EGG_PRODUCT(13, 12, 0) EGG_PRODUCT(13, 12, 1) EGG_PRODUCT(13, 12, 2)
        EGG_PRODUCT(13, 12, 3) EGG_PRODUCT(13, 12, 4) EGG_PRODUCT(13, 12, 5)
        EGG_PRODUCT(13, 12, 6) EGG_PRODUCT(13, 12, 7) EGG_PRODUCT(13, 12, 8)
        EGG_PRODUCT(13, 12, 9) EGG_PRODUCT(13, 12, 10) EGG_PRODUCT(13, 12, 11)
        "dec %[n]\n\t"
        "jnz 1b\n\t"
        : [n] "+r"(n)
        :
        : EGG_ALL, "cc");
    // clang-format on
    return rounds * 12 * 32;
  }
};

using Matrix = TileMatrix<Isa>;
using LearnIsa = X86Learn<V256>;
using Products = PortableProducts<Isa>;
using Adam = X86Adam<V256>;

#include "unit.h"
extern const Kernels kernels = kernels_of("avxvnni");
}  // namespace eggroll::avxvnni
