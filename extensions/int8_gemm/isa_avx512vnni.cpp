// AVX512-VNNI: unsigned x signed dot products of four bytes (vpdpbusd).
//
// Activations are biased to u8 = x + 128, so sum w u = sum w x + 128 sum w: accumulators begin at
// the bias -128 sum w that each packed tile carries. No step saturates.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::avx512vnni {
#include "lanes.h"
#include "portable_isa.h"
#include "x86_transpose.h"

struct Isa : PortableIsa {
  using Prepared = uint32_t;  // [K/4][32] of u8
  using Noise = uint32_t;     // [K/4][16] of s8

  static size_t prepared_size(int words) { return static_cast<size_t>(words) * kLanes; }
  static size_t noise_size(int words) { return static_cast<size_t>(words) * kPairs; }

  static void prepare(const uint32_t* x, int words, Prepared* out) {
    for (int i = 0; i < words * kLanes; ++i) out[i] = x[i] ^ 0x80808080u;
  }

  static void prepare_noise(const uint32_t* raw, int words, Noise* out) {
    __builtin_memcpy(out, raw, noise_size(words) * sizeof(Noise));
  }

  static void transpose(const int8_t* const* src, int8_t* dst) { transpose_sse2(src, dst); }

  // Eight outputs x 32 lanes in sixteen accumulators. The loop is assembly because gcc spills
  // accumulators of the same loop written with intrinsics.
  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    const int8_t* w = tile + kTile * sizeof(int32_t);
    long n = words;
    asm volatile(
        "vpbroadcastd 0(%[s]), %%zmm0\n\t"
        "vpbroadcastd 4(%[s]), %%zmm1\n\t"
        "vpbroadcastd 8(%[s]), %%zmm2\n\t"
        "vpbroadcastd 12(%[s]), %%zmm3\n\t"
        "vpbroadcastd 16(%[s]), %%zmm4\n\t"
        "vpbroadcastd 20(%[s]), %%zmm5\n\t"
        "vpbroadcastd 24(%[s]), %%zmm6\n\t"
        "vpbroadcastd 28(%[s]), %%zmm7\n\t"
        "vmovdqa64 %%zmm0, %%zmm8\n\t"
        "vmovdqa64 %%zmm1, %%zmm9\n\t"
        "vmovdqa64 %%zmm2, %%zmm10\n\t"
        "vmovdqa64 %%zmm3, %%zmm11\n\t"
        "vmovdqa64 %%zmm4, %%zmm12\n\t"
        "vmovdqa64 %%zmm5, %%zmm13\n\t"
        "vmovdqa64 %%zmm6, %%zmm14\n\t"
        "vmovdqa64 %%zmm7, %%zmm15\n\t"
        "1:\n\t"
        "vmovdqu32 (%[x]), %%zmm16\n\t"
        "vmovdqu32 64(%[x]), %%zmm17\n\t"
        "vpbroadcastd (%[w]), %%zmm18\n\t"
        "vpbroadcastd 4(%[w]), %%zmm19\n\t"
        "vpbroadcastd 8(%[w]), %%zmm20\n\t"
        "vpbroadcastd 12(%[w]), %%zmm21\n\t"
        "vpdpbusd %%zmm18, %%zmm16, %%zmm0\n\t"
        "vpdpbusd %%zmm18, %%zmm17, %%zmm8\n\t"
        "vpdpbusd %%zmm19, %%zmm16, %%zmm1\n\t"
        "vpdpbusd %%zmm19, %%zmm17, %%zmm9\n\t"
        "vpdpbusd %%zmm20, %%zmm16, %%zmm2\n\t"
        "vpdpbusd %%zmm20, %%zmm17, %%zmm10\n\t"
        "vpdpbusd %%zmm21, %%zmm16, %%zmm3\n\t"
        "vpdpbusd %%zmm21, %%zmm17, %%zmm11\n\t"
        "vpbroadcastd 16(%[w]), %%zmm22\n\t"
        "vpbroadcastd 20(%[w]), %%zmm23\n\t"
        "vpbroadcastd 24(%[w]), %%zmm24\n\t"
        "vpbroadcastd 28(%[w]), %%zmm25\n\t"
        "vpdpbusd %%zmm22, %%zmm16, %%zmm4\n\t"
        "vpdpbusd %%zmm22, %%zmm17, %%zmm12\n\t"
        "vpdpbusd %%zmm23, %%zmm16, %%zmm5\n\t"
        "vpdpbusd %%zmm23, %%zmm17, %%zmm13\n\t"
        "vpdpbusd %%zmm24, %%zmm16, %%zmm6\n\t"
        "vpdpbusd %%zmm24, %%zmm17, %%zmm14\n\t"
        "vpdpbusd %%zmm25, %%zmm16, %%zmm7\n\t"
        "vpdpbusd %%zmm25, %%zmm17, %%zmm15\n\t"
        "add $128, %[x]\n\t"
        "add $32, %[w]\n\t"
        "dec %[n]\n\t"
        "jnz 1b\n\t"
        "vmovdqa64 %%zmm0, 0(%[acc])\n\t"
        "vmovdqa64 %%zmm8, 64(%[acc])\n\t"
        "vmovdqa64 %%zmm1, 128(%[acc])\n\t"
        "vmovdqa64 %%zmm9, 192(%[acc])\n\t"
        "vmovdqa64 %%zmm2, 256(%[acc])\n\t"
        "vmovdqa64 %%zmm10, 320(%[acc])\n\t"
        "vmovdqa64 %%zmm3, 384(%[acc])\n\t"
        "vmovdqa64 %%zmm11, 448(%[acc])\n\t"
        "vmovdqa64 %%zmm4, 512(%[acc])\n\t"
        "vmovdqa64 %%zmm12, 576(%[acc])\n\t"
        "vmovdqa64 %%zmm5, 640(%[acc])\n\t"
        "vmovdqa64 %%zmm13, 704(%[acc])\n\t"
        "vmovdqa64 %%zmm6, 768(%[acc])\n\t"
        "vmovdqa64 %%zmm14, 832(%[acc])\n\t"
        "vmovdqa64 %%zmm7, 896(%[acc])\n\t"
        "vmovdqa64 %%zmm15, 960(%[acc])\n\t"
        : [x] "+r"(x), [w] "+r"(w), [n] "+r"(n)
        : [s] "r"(tile), [acc] "r"(acc)
        : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10",
          "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17", "zmm18", "zmm19", "zmm20",
          "zmm21", "zmm22", "zmm23", "zmm24", "zmm25", "cc", "memory");
  }

  static int64_t peak(int64_t rounds) {
    int64_t n = rounds;
    asm volatile(
        "1:\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm0\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm1\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm2\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm3\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm4\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm5\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm6\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm7\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm8\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm9\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm10\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm11\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm12\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm13\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm14\n\t"
        "vpdpbusd %%zmm17, %%zmm16, %%zmm15\n\t"
        "dec %[n]\n\t"
        "jnz 1b\n\t"
        : [n] "+r"(n)
        :
        : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10",
          "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "cc");
    return rounds * 16 * 64;
  }

  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    __m512i plus = _mm512_setzero_si512(), minus = plus, bias = plus;
    const __m512i offset = _mm512_set1_epi8(-128);  // 128 as u8
    for (int k = 0; k < words; ++k) {
      __m512i n = _mm512_load_si512(b + static_cast<size_t>(k) * kPairs);
      plus = _mm512_dpbusd_epi32(plus, _mm512_load_si512(x + static_cast<size_t>(k) * kLanes), n);
      minus = _mm512_dpbusd_epi32(
          minus, _mm512_load_si512(x + static_cast<size_t>(k) * kLanes + kPairs), n);
      bias = _mm512_dpbusd_epi32(bias, offset, n);
    }
    _mm512_storeu_si512(out, _mm512_sub_epi32(plus, bias));
    _mm512_storeu_si512(out + kPairs, _mm512_sub_epi32(minus, bias));
  }

  static void finish(int32_t (*acc)[kLanes], const LowRank& noise, const Scale& by,
                     uint32_t (*out)[kLanes]) {
    const __m128i shift = _mm_cvtsi32_si128(noise.shift);
    for (int half = 0; half < kLanes; half += kPairs)
      for (int w = 0; w < kTile / 4; ++w) {
        __m512i v[4];
        for (int i = 0; i < 4; ++i) {
          v[i] = _mm512_load_si512(acc[4 * w + i] + half);
          if (noise.rank)
            v[i] = _mm512_add_epi32(v[i], _mm512_sra_epi32(term(noise, 4 * w + i, half), shift));
          v[i] = quotient(v[i], by);
        }
        _mm512_store_si512(out[w] + half, bytes(v));
      }
  }

  static __m512i term(const LowRank& noise, int output, int half) {
    __m512i sum = _mm512_setzero_si512();
    for (int j = 0; j < noise.rank; ++j) {
      const int8_t* a = noise.a + j * noise.stride + output * kPairs;
      __m512i wide = _mm512_cvtepi8_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(a)));
      __m512i xb = _mm512_load_si512(noise.xb[j] + half);
      sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(xb, wide));
    }
    return sum;
  }

  // Floor division; the caller's packs clip a power of two's, divide()'s way clips itself.
  static __m512i quotient(__m512i v, const Scale& by) {
    if (by.power) return _mm512_sra_epi32(v, _mm_cvtsi32_si128(by.shift));
    const __m512i half = _mm512_set1_epi32(by.divisor.half);
    v = _mm512_min_epi32(_mm512_srai_epi32(v, 4), _mm512_set1_epi32(by.divisor.half - 1));
    v = _mm512_add_epi32(_mm512_max_epi32(v, _mm512_set1_epi32(-by.divisor.half)), half);
    v = _mm512_mullo_epi32(v, _mm512_set1_epi32(static_cast<int>(by.divisor.gain)));
    return _mm512_sub_epi32(_mm512_srli_epi32(v, 23), _mm512_set1_epi32(128));
  }

  // Four int32 per lane to the four bytes of its word, clipped to +-127.
  static __m512i bytes(const __m512i* v) {
    const __m512i order =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m512i packed =
        _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));
    packed = _mm512_max_epi8(packed, _mm512_set1_epi8(-127));
    return _mm512_shuffle_epi8(packed, order);
  }

  // EXP2[u] = mantissa[u % 16] >> (15 - u / 16): the table of sixteen fits one register.
  static void exp2_sum(uint32_t (*words)[kLanes], int count, const Plan& plan, uint32_t* sum) {
    const __m512i mantissa = _mm512_loadu_si512(plan.exp2_mantissa);
    const __m512i low = _mm512_set1_epi32(15), byte = _mm512_set1_epi32(255);
    for (int half = 0; half < kLanes; half += 16) {
      __m512i total = _mm512_loadu_si512(sum + half);
      for (int o = 0; o < count; ++o) {
        __m512i u = _mm512_loadu_si512(words[o / 4] + half);
        u = _mm512_and_si512(_mm512_srli_epi32(u, 8 * (o % 4)), byte);
        u = _mm512_xor_si512(u, _mm512_set1_epi32(128));
        __m512i shift = _mm512_sub_epi32(low, _mm512_srli_epi32(u, 4));
        total = _mm512_add_epi32(total,
                                 _mm512_srlv_epi32(_mm512_permutexvar_epi32(u, mantissa), shift));
      }
      _mm512_storeu_si512(sum + half, total);
    }
  }
};

#include "block.h"
#include "votes.h"
extern const Kernels kernels = {"avx512vnni", Isa::peak, block_bytes, block, vote_bytes, vote};
}  // namespace eggroll::avx512vnni
