// Products by vpmaddubsw, which multiplies twice as many bytes at a time as vpmaddwd, but
// saturates.
//
// With the other operand biased to u8 = x + 128, at most 255, the products of four bytes add up to
// less than 2^15 where those above zero add up to at most 128, and those below to at least -128.
// Weights, noise and credit are small, so nearly all words are multiplied like that, two at a time;
// what is too large goes one word at a time, as |x| times the other with the sign of x.

struct Avx2Pairs {
  static __m256i load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  static void store(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  static __m256i all(int32_t v) { return _mm256_set1_epi32(v); }

  // Words by how they are multiplied: pairs (k, k + 1) by their first word, and single ones.
  struct Words {
    int* pairs;
    int pair_count;
    int* singles;
    int single_count;
  };

  // A list of words: two counts, then pairs and singles.
  static size_t list_size(int words) { return static_cast<size_t>(words / 2 + words + 2); }

  static Words list_at(int32_t* at, int words) {
    return {at + 2, at[0], at + 2 + words / 2, at[1]};
  }
  static Words list_at(const int32_t* at, int words) {
    return list_at(const_cast<int32_t*>(at), words);
  }

  // A tile of weights with the list of its words.
  static size_t tile_bytes(int words) {
    return PortableIsa::tile_bytes(words) + (list_size(words) * 4 + 31) / 32 * 32;
  }

  // Where sums of four bytes, two neighbours in each of a and b, are too large for a pair.
  static __m256i too_large(__m256i a, __m256i b) {
    const __m256i zero = _mm256_setzero_si256(), one = _mm256_set1_epi8(1);
    auto sums = [&](__m256i v, __m256i w) {
      v = _mm256_maddubs_epi16(_mm256_max_epi8(v, zero), one);
      return _mm256_add_epi16(v, _mm256_maddubs_epi16(_mm256_max_epi8(w, zero), one));
    };
    __m256i over = sums(a, b);
    __m256i under = sums(_mm256_sub_epi8(zero, a), _mm256_sub_epi8(zero, b));
    return _mm256_cmpgt_epi16(_mm256_max_epi16(over, under), _mm256_set1_epi16(128));
  }

  // Sorts the words of `count` vectors each, which lie `stride` bytes apart.
  template <int count>
  static void sort(const int8_t* from, size_t stride, int words, int32_t* at) {
    at[0] = at[1] = 0;
    Words list = list_at(at, words);
    int k = 0;
    for (; k + 2 <= words; k += 2, from += 2 * stride) {
      __m256i large = _mm256_setzero_si256();
      for (int i = 0; i < count; ++i)
        large =
            _mm256_or_si256(large, too_large(load(from + 32 * i), load(from + stride + 32 * i)));
      int fits = _mm256_testz_si256(large, large);
      list.pairs[at[0]] = k;
      list.singles[at[1]] = k, list.singles[at[1] + 1] = k + 1;
      at[0] += fits, at[1] += fits ? 0 : 2;
    }
    if (k < words) list.singles[at[1]++] = k;
  }

  // -128 times the sum of each word's bytes.
  static __m256i bias(__m256i v) {
    __m256i two = _mm256_maddubs_epi16(_mm256_set1_epi8(1), v);
    return _mm256_madd_epi16(two, _mm256_set1_epi16(-128));
  }

  // Sorts the words of a tile, and has -128 times the sums of its pairs, for each output.
  static void close_words(const int8_t* w, int words, int32_t* sums, int32_t* at) {
    sort<1>(w, 4 * kTile, words, at);
    Words list = list_at(at, words);
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < list.pair_count; ++i)
      for (int k = list.pairs[i]; k < list.pairs[i] + 2; ++k)
        sum = _mm256_add_epi32(sum, bias(load(w + static_cast<size_t>(k) * 4 * kTile)));
    store(sums, sum);
  }

  // The same where a packed tile has room for them: its biases, and behind it.
  static void close_tile(int8_t* tile, int words) {
    int8_t* w = tile + kTile * sizeof(int32_t);
    close_words(w, words, reinterpret_cast<int32_t*>(tile),
                reinterpret_cast<int32_t*>(w + static_cast<size_t>(words) * kTile * 4));
  }

  // Such a tile by words that are biased.
  static void count(const int8_t* tile, const int32_t* inputs, int words, int32_t (*acc)[kLanes]) {
    const int8_t* w = tile + kTile * sizeof(int32_t);
    count_words(w, reinterpret_cast<const int32_t*>(tile),
                reinterpret_cast<const int32_t*>(w + static_cast<size_t>(words) * kTile * 4),
                inputs, words, acc);
  }

  // To u8 = x + 128, or back.
  static void flip(const uint32_t* x, int count, int32_t* to) {
    for (int i = 0; i < count; i += 8)
      store(to + i, _mm256_xor_si256(load(x + i), _mm256_set1_epi8(-128)));
  }

  static void count_words(const int8_t* w, const int32_t* sums, const int32_t* at,
                          const int32_t* inputs, int words, int32_t (*acc)[kLanes]) {
    Words list = list_at(at, words);
    for (int o = 0; o < kTile; o += 4)
      for (int m = 0; m < kLanes; m += 16) {
        __m256i first[4], second[4];
        for (int i = 0; i < 4; ++i) first[i] = second[i] = all(sums[o + i]);
        four<true>(w + 4 * o, inputs + m, list, first, second, acc + o, m);
      }
  }

  static __m256i word(const int8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, 4);
    return all(v);
  }

  // Four outputs x 16 lanes. Credit is w, and x is biased already; or credit is x, and w is biased
  // here.
  template <bool of_w>
  static void four(const int8_t* w, const int32_t* x, const Words& list, __m256i* a, __m256i* b,
                   int32_t (*acc)[kLanes], int m) {
    const __m256i flip = _mm256_set1_epi8(-128), one = _mm256_set1_epi16(1);
    auto product = [&](__m256i v, __m256i by) {
      return of_w ? _mm256_maddubs_epi16(v, by) : _mm256_maddubs_epi16(by, v);
    };
    for (int i = 0; i < list.pair_count; ++i) {
      const int8_t* from = w + static_cast<size_t>(list.pairs[i]) * 4 * kTile;
      const int32_t* v = x + static_cast<size_t>(list.pairs[i]) * kLanes;
      __m256i x0 = load(v), x1 = load(v + 8), y0 = load(v + kLanes), y1 = load(v + kLanes + 8);
      for (int o = 0; o < 4; ++o) {
        __m256i p = word(from + 4 * o), q = word(from + 4 * kTile + 4 * o);
        if (!of_w) p = _mm256_xor_si256(p, flip), q = _mm256_xor_si256(q, flip);
        __m256i s = _mm256_add_epi16(product(x0, p), product(y0, q));
        __m256i t = _mm256_add_epi16(product(x1, p), product(y1, q));
        a[o] = _mm256_add_epi32(a[o], _mm256_madd_epi16(s, one));
        b[o] = _mm256_add_epi32(b[o], _mm256_madd_epi16(t, one));
      }
    }
    for (int i = 0; i < list.single_count; ++i) {
      const int8_t* from = w + static_cast<size_t>(list.singles[i]) * 4 * kTile;
      const int32_t* v = x + static_cast<size_t>(list.singles[i]) * kLanes;
      __m256i x0 = load(v), x1 = load(v + 8);
      if (of_w) x0 = _mm256_xor_si256(x0, flip), x1 = _mm256_xor_si256(x1, flip);
      __m256i y0 = _mm256_abs_epi8(x0), y1 = _mm256_abs_epi8(x1);
      for (int o = 0; o < 4; ++o) {
        __m256i p = word(from + 4 * o);
        __m256i s = _mm256_maddubs_epi16(y0, _mm256_sign_epi8(p, x0));
        __m256i t = _mm256_maddubs_epi16(y1, _mm256_sign_epi8(p, x1));
        a[o] = _mm256_add_epi32(a[o], _mm256_madd_epi16(s, one));
        b[o] = _mm256_add_epi32(b[o], _mm256_madd_epi16(t, one));
      }
    }
    for (int o = 0; o < 4; ++o) store(acc[o] + m, a[o]), store(acc[o] + m + 8, b[o]);
  }
};

// Products of credit and of noise by pairs of words.
struct Avx2Products : Avx2Pairs {
  static constexpr int kTiles = 1;
  static void close_tile(int8_t* tile, int words, size_t) { Avx2Pairs::close_tile(tile, words); }

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
