// Votes are added up from registers. Included inside the namespaces of units of AVX-512, after
// learn_products.h.

struct Avx512Products : PortableProducts {
  static void add(const int8_t* tile, const Panel* inputs, int words, int32_t* votes,
                  int64_t stride) {
    __m512i a[kTile], b[kTile];
    Avx512Isa::multiply<false>(tile, inputs, words, a, b);
    for (int o = 0; o < kTile; ++o, votes += stride) {
      const __m512i first = _mm512_loadu_si512(votes), last = _mm512_loadu_si512(votes + kPairs);
      _mm512_storeu_si512(votes, _mm512_add_epi32(first, a[o]));
      _mm512_storeu_si512(votes + kPairs, _mm512_add_epi32(last, b[o]));
    }
  }
};
