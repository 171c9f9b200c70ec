// Primitives that both VNNI units share. Included inside each unit's namespace, after
// portable_isa.h and x86_transpose.h.
//
// Activations are biased to u8 = x + 128, so sum w u = sum w x + 128 sum w: accumulators begin at
// the bias -128 sum w that each packed tile carries. No step saturates.

struct VnniIsa : PortableIsa {
  using Prepared = uint32_t;  // [K/4][32] of u8
  using Noise = uint32_t;     // [16] biases, int32 -128 * sum b, then [K/4][16] of s8

  static size_t prepared_size(int words) { return static_cast<size_t>(words) * kLanes; }
  static size_t noise_size(int words) { return static_cast<size_t>(1 + words) * kPairs; }

  static void prepare(const uint32_t* x, int words, Prepared* out) {
    for (int i = 0; i < words * kLanes; ++i) out[i] = x[i] ^ 0x80808080u;
  }
  static void prepare_noise(const uint32_t* raw, int words, Noise* out) {
    __builtin_memcpy(out + kPairs, raw, static_cast<size_t>(words) * kPairs * sizeof(Noise));
    for (int p = 0; p < kPairs; p += kTile) biases(raw + p, words, kPairs, out + p);
  }
  static void transpose(const int8_t* const* src, int8_t* dst) { transpose_sse2(src, dst); }
  static void transpose_words(const int8_t* const* src, int words, uint32_t* dst, int stride) {
    transpose_words_sse2(src, words, dst, stride);
  }
  static void interleave(const int8_t* const* src, int at, uint32_t negative, uint32_t* first,
                         uint32_t* second) {
    interleave_sse2(src, at, negative, first, second);
  }

  // -128 times the sum of each of the eight outputs' bytes.
  static void bias(int8_t* tile, int words) {
    uint32_t* to = reinterpret_cast<uint32_t*>(tile);
    biases(to + kTile, words, kTile, to);
  }

  // The same of eight words' bytes, in rows that lie `stride` words apart.
  static void biases(const uint32_t* w, int words, int stride, uint32_t* out) {
    const __m256i one = _mm256_set1_epi8(1);
    __m256i sum = _mm256_setzero_si256();
    for (int k = 0; k < words; ++k, w += stride) {
      __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
      __m256i two = _mm256_maddubs_epi16(one, v);  // at most 2 * 127
      sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two, _mm256_set1_epi16(-128)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), sum);
  }
};
