// Products of credit and of noise by pairs of words, see avx2_pairs.h. Included inside the AVX2
// unit's namespace, after learn_products.h.

struct Avx2Products : Avx2Pairs {
  // Of one panel of credit or inputs: words, and for credit the words of each half of the lanes
  // and -128 times the sums of their pairs.
  using Panel = int32_t;

  static size_t panel_size(int words) {
    return static_cast<size_t>(words) * kLanes + kLanes + 2 * list_size(words);
  }
  static void close_credit(const uint32_t* credit, int words, Panel* to) {
    size_t size = static_cast<size_t>(words) * kLanes;
    __builtin_memcpy(to, credit, size * sizeof *to);
    Panel *sums = to + size, *lists = sums + kLanes;
    const int8_t* bytes = reinterpret_cast<const int8_t*>(credit);
    for (int m = 0; m < kLanes; m += 16, lists += list_size(words)) {
      sort<2>(bytes + 4 * m, kRow, words, lists);
      Words list = list_at(lists, words);
      __m256i a = _mm256_setzero_si256(), b = a;
      for (int i = 0; i < list.pair_count; ++i)
        for (int k = list.pairs[i]; k < list.pairs[i] + 2; ++k) {
          a = _mm256_add_epi32(a, bias(load(credit + k * kLanes + m)));
          b = _mm256_add_epi32(b, bias(load(credit + k * kLanes + m + 8)));
        }
      store(sums + m, a), store(sums + m + 8, b);
    }
  }

  static void send(const int8_t* tile, const Panel* credit, int words, int32_t (*acc)[kLanes]) {
    const int8_t* w = tile + kTile * sizeof(int32_t);
    const Panel* sums = credit + static_cast<size_t>(words) * kLanes;
    const Panel* lists = sums + kLanes;
    for (int m = 0; m < kLanes; m += 16, lists += list_size(words)) {
      Words list = list_at(lists, words);
      __m256i a = load(sums + m), b = load(sums + m + 8);
      for (int o = 0; o < kTile; o += 4) {
        __m256i first[4] = {a, a, a, a}, second[4] = {b, b, b, b};
        four<false>(w + 4 * o, credit + m, list, first, second, acc + o, m);
      }
    }
  }

  static void close_inputs(const uint32_t* columns, int words, Panel* to) {
    flip(columns, words * kLanes, to);
  }
  static void add(const int8_t* tile, const Panel* inputs, int words, int32_t* votes,
                  int64_t stride) {
    alignas(64) int32_t acc[kTile][kLanes];
    count(tile, inputs, words, acc);
    add_sums(acc, kTile, kLanes, votes, stride);
  }
};
