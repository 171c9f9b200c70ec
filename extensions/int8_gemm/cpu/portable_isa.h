// The primitives an instruction set may replace, in portable C++ for the vectoriser to work on.
// x and raw are words [K/4][lanes] of four int8.

struct PortableIsa : PortableCredit {
  using Prepared = int16_t;  // [K][32]
  using Noise = int16_t;     // [K][16]

  // Whether registers are multiplied where they lie, with so many words beyond them, and B is kept
  // as rows of the pairs.
  static constexpr bool kInPlace = false, kNoiseRows = false;
  static constexpr size_t kPadding = 0;
  // Whether `norm`, `forget`, `mix` and, if its template says so, `tile` give what `prepare` makes
  // of their results.
  static constexpr bool kFlips = false;
  // Whether noise of rank 1 is laid out as LowRank::pairs, and whether the first tile finds its
  // x.B.
  static constexpr bool kPairsOfOutputs = false, kDotsFirst = false;
  // Whether noise on the nodes is, where it fits 16 bits, and how many tiles `offer` is given one
  // after another, as its steps wait for each other: neither helps AVX2.
  static constexpr bool kPairsOfNodes = false;
  static constexpr int kOffered = 1;

  // Rows [outputs][16 pairs] of A, shifted, two rows to a word.
  static void pair_outputs(const int8_t* a, int outputs, int up, bool grouped, uint32_t* to) {
    int16_t* at = reinterpret_cast<int16_t*>(to);
    for (int o = 0; o < outputs; ++o)
      for (int p = 0; p < kPairs; ++p)
        at[o / 2 * 2 * kPairs + place_of(p, o % 2, grouped)] =
            static_cast<int16_t>(a[o * kPairs + p] * (1 << up));
  }

  // x.B, shifted, twice in 16 bits; whether each is small enough then.
  static bool twice(const LowRank& noise, const Scale& scale) {
    const int32_t* x = noise.xb[0];
    uint32_t* to = noise.twice;
    const int by = 16 - noise.shift - up_of(noise.shift);
    if (by < 0) return false;
    const int most = scale.largest >> by;
    int16_t* at = reinterpret_cast<int16_t*>(to);
    bool fits = true;
    for (int m = 0; m < kLanes; ++m) {
      fits &= x[m] <= most && x[m] >= -most;
      const int16_t v = static_cast<int16_t>(static_cast<uint32_t>(x[m]) << by);
      for (int i = 0; i < 2; ++i)
        at[m / kPairs * 2 * kPairs + place_of(m % kPairs, i, scale.grouped)] = v;
    }
    return fits;
  }

  // Where 16 lanes' words have the halves of two outputs: side by side, or four lanes of the one
  // and then of the other.
  static int place_of(int lane, int output, bool grouped) {
    return grouped ? lane / 4 * 8 + lane % 4 + 4 * output : 2 * lane + output;
  }
  static void keep_noise(const int8_t*, int, int, int, void*) {}

  // What a thread needs while it runs a block, learns or votes, and again after others' code.
  struct Session {};
  static void resume() {}

  static size_t prepared_size(int words) { return static_cast<size_t>(words) * 4 * kLanes; }
  static size_t noise_size(int words) { return static_cast<size_t>(words) * 4 * kPairs; }

  // Weights in tiles of kTile outputs: their biases, int32 -128 * row sum, then [K/4][kTile][4].
  static size_t tile_bytes(int words) {
    return kTile * sizeof(int32_t) + static_cast<size_t>(words) * kTile * 4;
  }
  static size_t weight_bytes(int rows, int cols) {
    return static_cast<size_t>(tiles_of(rows)) * tile_bytes(words_of(cols));
  }
  static void pack(const int8_t* src, int rows, int cols, int8_t* to) {
    pack_tiles(src, rows, cols, tile_bytes(words_of(cols)), to);
  }

  // Tiles that lie `stride` bytes apart.
  static void pack_tiles(const int8_t* src, int rows, int cols, size_t stride, int8_t* to) {
    for (int o = 0; o < rows; ++o, src += cols) {
      int8_t* at = to + static_cast<size_t>(o / kTile) * stride;
      int32_t sum = 0;
      for (int k = 0; k < cols; ++k) sum += src[k];
      reinterpret_cast<int32_t*>(at)[o % kTile] = -128 * sum;
      at += kTile * 4 + o % kTile * 4;
      int k = 0;
      for (; k + 4 <= cols; k += 4) __builtin_memcpy(at + k * kTile, src + k, 4);
      if (k < cols) __builtin_memcpy(at + k * kTile, src + k, static_cast<size_t>(cols - k));
    }
  }

  template <int lanes>
  static void widen(const uint32_t* words, int count, int16_t* out) {
    for (int w = 0; w < count; ++w)
      for (int j = 0; j < 4; ++j)
        for (int m = 0; m < lanes; ++m)
          out[(4 * w + j) * lanes + m] = static_cast<int16_t>(
              static_cast<int32_t>(words[w * lanes + m] << (24 - 8 * j)) >> 24);
  }

  static void prepare(const uint32_t* x, int words, Prepared* out) { widen<kLanes>(x, words, out); }
  static void prepare_noise(const uint32_t* raw, int words, Noise* out) {
    widen<kPairs>(raw, words, out);
  }

  // The vector as members 2i and 2i + 1 see it. Products of two bytes fit int16, and a shift by
  // more than 15 gives what a shift by 15 does.
  static void perturbed(const int8_t* __restrict w, const int8_t* __restrict two, int n, int shift,
                        int8_t* __restrict plus, int8_t* __restrict minus) {
    int by = shift < 15 ? shift : 15;
    for (int i = 0; i < n; ++i) {
      int16_t product = static_cast<int16_t>(two[2 * i] * two[2 * i + 1]);
      int16_t negative = static_cast<int16_t>(-product);
      plus[i] = static_cast<int8_t>(clip(w[i] + (product >> by)));
      minus[i] = static_cast<int8_t>(clip(w[i] + (negative >> by)));
    }
  }

  // dst[16 * i + p] = src[p][i] for i, p = 0..15.
  static void transpose(const int8_t* const* src, int8_t* __restrict dst) {
    for (int p = 0; p < kPairs; ++p)
      for (int i = 0; i < 16; ++i) dst[16 * i + p] = src[p][i];
  }

  // dst[w * stride + p] = the w-th word of row src[p], for p = 0..15 and w < words.
  static void transpose_words(const int8_t* const* src, int words, uint32_t* __restrict dst,
                              int stride) {
    for (int p = 0; p < kPairs; ++p)
      for (int w = 0; w < words; ++w) __builtin_memcpy(dst + w * stride + p, src[p] + 4 * w, 4);
  }

  // The indices of a list that are no -1, in order: the list itself if those that are stand behind
  // it, else `room`, of kListRoom.
  static ActiveRows active_rows(const int32_t* __restrict list, int n, int32_t* __restrict room) {
    int first = 0, count = 0;
    while (first < n && list[first] >= 0) ++first;
    for (int i = 0; i < n; ++i) count += list[i] >= 0;
    if (count == first) return {list, count};
    for (int i = count = 0; i < n; ++i) {
      room[count] = list[i];
      count += list[i] >= 0;
    }
    return {room, count};
  }

  // Whether each is larger than the one before.
  static bool ascend(ActiveRows rows) {
    bool ok = true;
    for (int i = 1; i < rows.count; ++i) ok &= rows.row[i] > rows.row[i - 1];
    return ok;
  }

  // Whether all are of so many.
  static bool within(ActiveRows rows, int32_t most) {
    bool ok = true;
    for (int i = 0; i < rows.count; ++i)
      ok &= static_cast<uint32_t>(rows.row[i]) < static_cast<uint32_t>(most);
    return ok;
  }

  // to[n] = the sum of those rows, whose bytes lie `step` apart. Up to kActive int8 fit 16 bits.
  static void sum_rows(const int8_t* from, int64_t step, ActiveRows rows, int n, int16_t* to) {
    using Bytes __attribute__((vector_size(16))) = int8_t;
    using Halves __attribute__((vector_size(32))) = int16_t;
    int k = 0;
    for (; k + 16 <= n; k += 16) {
      Halves total = {};
      for (int i = 0; i < rows.count; ++i) {
        Bytes bytes;
        __builtin_memcpy(&bytes, from + rows.row[i] * step + k, sizeof bytes);
        total += __builtin_convertvector(bytes, Halves);
      }
      __builtin_memcpy(to + k, &total, sizeof total);
    }
    for (; k < n; ++k) {
      int total = 0;
      for (int i = 0; i < rows.count; ++i) total += from[rows.row[i] * step + k];
      to[k] = static_cast<int16_t>(total);
    }
  }

  // to[n] = clip(from >> by), 16 bits to 8.
  static void clip_sums(const int16_t* __restrict from, int n, int by, int8_t* __restrict to) {
    for (int k = 0; k < n; ++k) to[k] = static_cast<int8_t>(clip(from[k] >> by));
  }

  // to[n] = clip(the sum of those rows >> by); sum[n] is room for what is between.
  static void give_rows(const int8_t* from, int64_t step, ActiveRows rows, int n, int by,
                        int16_t* sum, int8_t* to) {
    sum_rows(from, step, rows, n, sum);
    clip_sums(sum, n, by, to);
  }

  // z[row] += from, n bytes, of each of those rows.
  static void add_to_rows(const int8_t* from, int n, ActiveRows rows, int32_t* z) {
    int k = 0;
    for (; k + 128 <= n; k += 128) add_some<8>(from, k, n, rows, z);
    for (; k + 32 <= n; k += 32) add_some<2>(from, k, n, rows, z);
    for (int i = 0; k < n && i < rows.count; ++i)
      add_bytes(from + k, n - k, z + int64_t{rows.row[i]} * n + k);
  }

  // Of 16 times `count` bytes.
  template <int count>
  static void add_some(const int8_t* from, int k, int n, ActiveRows rows, int32_t* z) {
    using Bytes __attribute__((vector_size(16))) = int8_t;
    using Signed __attribute__((vector_size(64))) = int32_t;
    using Words __attribute__((vector_size(64))) = uint32_t;  // they wrap
    Words wide[count];
    for (int j = 0; j < count; ++j) {
      Bytes bytes;
      __builtin_memcpy(&bytes, from + k + 16 * j, sizeof bytes);
      wide[j] = reinterpret_cast<Words>(__builtin_convertvector(bytes, Signed));
    }
    for (int i = 0; i < rows.count; ++i) {
      int32_t* to = z + int64_t{rows.row[i]} * n + k;
      for (int j = 0; j < count; ++j, to += 16) {
        Words sum;
        __builtin_memcpy(&sum, to, sizeof sum);
        sum += wide[j];
        __builtin_memcpy(to, &sum, sizeof sum);
      }
    }
  }

  // The same where 16 bits hold the sums.
  static void add_to_rows(const int8_t* from, int n, ActiveRows rows, int16_t* z) {
    for (int i = 0; i < rows.count; ++i) add_bytes(from, n, z + int64_t{rows.row[i]} * n);
  }

  template <typename T>
  static void add_bytes(const int8_t* __restrict from, int n, T* __restrict z) {
    for (int k = 0; k < n; ++k) z[k] = static_cast<T>(wrapping_sum(z[k], from[k]));
  }

  // Words of four rows' bytes at + i, to first[i], i = 0..7, and second[i - 8], i = 8..15; the sign
  // of those under `negative` is turned.
  static void interleave(const int8_t* const* src, int at, uint32_t negative, uint32_t* first,
                         uint32_t* second) {
    auto word = [&](int i) {
      uint32_t made = 0;
      for (int j = 0; j < 4; ++j) {
        int v = negative >> 8 * j & 1 ? -src[j][at + i] : src[j][at + i];
        made |= (static_cast<uint32_t>(v) & 255u) << 8 * j;
      }
      return made;
    };
    for (int i = 0; i < 8; ++i) first[i] = word(i);
    for (int i = 0; i < 8; ++i) second[i] = word(8 + i);
  }

  // Fills the biases of a tile of `words` words where `dot` begins with them.
  static void bias(int8_t*, int) {}

  // Operations on `count` bytes, whole words of all lanes; y may be one of the inputs.
  static void add(const int8_t* a, const int8_t* b, int count, int8_t* y) {
    for (int i = 0; i < count; ++i) y[i] = static_cast<int8_t>(clip(a[i] + b[i]));
  }
  static void add_bias(const int8_t* a, const int8_t* b, const int8_t* w, int count, int8_t* y) {
    for (int i = 0; i < count; ++i) y[i] = static_cast<int8_t>(clip(a[i] + b[i] + w[i]));
  }
  static void forget(const int8_t* f, const int8_t* s, int count, int8_t* y, bool) {
    for (int i = 0; i < count; ++i) y[i] = static_cast<int8_t>(((f[i] + 127) * s[i]) >> 8);
  }
  static void mix(const int8_t* f, const int8_t* h, const int8_t* s, int count, int8_t* y,
                  int8_t*) {
    for (int i = 0; i < count; ++i)
      y[i] = static_cast<int8_t>(s[i] + (((f[i] + 127) * (h[i] - s[i])) >> 8));
  }

  // y = clip(y + ((sum_j xb[j] b[j]) >> shift)); xb: signed A of each lane's token, b: raw words.
  static void embed_noise(const int32_t (*xb)[kLanes], const uint32_t* raw, int rank, int words,
                          int shift, uint32_t* y) {
    for (int w = 0; w < words; ++w, y += kLanes) {
      alignas(64) int32_t pert[4][kLanes] = {};
      for (int j = 0; j < rank; ++j) {
        const uint32_t* __restrict b = raw + (static_cast<size_t>(j) * words + w) * kPairs;
        for (int i = 0; i < 4; ++i)
          for (int m = 0; m < kPairs; ++m) {
            pert[i][m] += xb[j][m] * byte_at(b[m], i);
            pert[i][m + kPairs] += xb[j][m + kPairs] * byte_at(b[m], i);
          }
      }
      for (int m = 0; m < kLanes; ++m) {
        uint32_t word = 0;
        for (int i = 0; i < 4; ++i) {
          int32_t v = clip(byte_at(y[m], i) + (pert[i][m] >> shift));
          word |= (static_cast<uint32_t>(v) & 255u) << 8 * i;
        }
        y[m] = word;
      }
    }
  }

  // y = clip((x w) // max(1, sum|x| // n)) for n rows of bytes in words [n/4][32]; x, w, y
  // likewise.
  static void norm(const uint32_t* x, const int8_t* w, int n, int8_t* y, bool) {
    alignas(64) int32_t sum[kLanes] = {}, half[4 * kLanes];
    alignas(64) uint32_t reciprocal[4 * kLanes];
    for (int k = 0; k < words_of(n); ++k)
      for (int j = 0; j < 4 && 4 * k + j < n; ++j)
        for (int m = 0; m < kLanes; ++m) {
          int32_t v = byte_at(x[k * kLanes + m], j);
          sum[m] += v < 0 ? -v : v;
        }
    for (int m = 0; m < kLanes; ++m) {
      Divisor d = divisor(mean_of(sum[m], n));
      for (int j = 0; j < 4; ++j) half[4 * m + j] = d.half, reciprocal[4 * m + j] = d.reciprocal;
    }
    const int8_t* bytes = reinterpret_cast<const int8_t*>(x);
    for (int k = 0; k < words_of(n); ++k)
      for (int i = 0; i < 4 * kLanes; ++i) {
        int at = k * 4 * kLanes + i;
        y[at] = static_cast<int8_t>(divide(bytes[at] * w[at], half[i], reciprocal[i]));
      }
  }

  // acc[o][m] = sum_k w[o][k] x[k][m]. Two products of int8 in +-127 fit int16 exactly.
  static void dot(const int8_t* tile, const Prepared* x, int words, int32_t (*acc)[kLanes]) {
    const int8_t* w = tile + kTile * sizeof(int32_t);
    for (int o = 0; o < kTile; ++o) {
      alignas(64) int32_t sum[kLanes] = {};
      for (int k = 0; k < words; ++k) {
        const int8_t* q = w + (k * kTile + o) * 4;
        const int16_t* row = x + static_cast<size_t>(k) * 4 * kLanes;
        int16_t w0 = q[0], w1 = q[1], w2 = q[2], w3 = q[3];
        for (int m = 0; m < kLanes; ++m) {
          int16_t a = static_cast<int16_t>(row[m] * w0 + row[kLanes + m] * w1);
          int16_t b = static_cast<int16_t>(row[2 * kLanes + m] * w2 + row[3 * kLanes + m] * w3);
          sum[m] += a + b;
        }
      }
      __builtin_memcpy(acc[o], sum, sizeof sum);
    }
  }

  // out[m] = sum_k x[k][m] b[k][m % 16].
  static void lane_dot(const Prepared* x, const Noise* b, int words, int32_t* out) {
    alignas(64) int32_t sum[kLanes] = {};
    for (int k = 0; k < 4 * words; ++k, x += kLanes, b += kPairs)
      for (int m = 0; m < kPairs; ++m) {
        sum[m] += x[m] * b[m];
        sum[m + kPairs] += x[m + kPairs] * b[m];
      }
    __builtin_memcpy(out, sum, sizeof sum);
  }

  // Product, low-rank term, division and clip of one tile, by the Isa's own dot and what follows
  // it.
  template <typename Self, typename Epilogue>
  static void tile_by(const int8_t* w, const typename Self::Prepared* x, int words,
                      const LowRank& noise, const Scale& by, uint32_t (*out)[kLanes]) {
    alignas(64) int32_t acc[kTile][kLanes];
    Self::dot(w, x, words, acc);
    Epilogue::finish(acc, noise, by, out);
  }
  template <bool>
  static void tile(const int8_t* w, const Prepared* x, int words, const LowRank& noise,
                   const Scale& by, uint32_t (*out)[kLanes]) {
    tile_by<PortableIsa, PortableIsa>(w, x, words, noise, by, out);
  }

  // The noise of a tile, added to its sums.
  static inline __attribute__((always_inline)) void add_noise(int32_t (*acc)[kLanes],
                                                              const LowRank& noise) {
    for (int o = 0; o < kTile; ++o)
      for (int half = 0; noise.rank && half < kLanes; half += kPairs) {
        alignas(64) uint32_t sum[kPairs] = {};
        for (int j = 0; j < noise.rank; ++j) {
          const int32_t* xb = noise.xb[j] + half;
          const int8_t* a = noise.a + j * noise.stride + o * kPairs;
          for (int m = 0; m < kPairs; ++m)
            sum[m] += static_cast<uint32_t>(xb[m]) * static_cast<uint32_t>(a[m]);
        }
        for (int m = 0; m < kPairs; ++m)
          acc[o][half + m] =
              wrapping_sum(acc[o][half + m], static_cast<int32_t>(sum[m]) >> noise.shift);
      }
    for (int o = 0; noise.node && o < kTile; ++o)
      for (int m = 0; m < kPairs; ++m) {
        uint32_t n = static_cast<uint32_t>(noise.node[o * kPairs + m]);
        uint32_t first = noise.minus[m], second = noise.minus[m + kPairs];
        acc[o][m] = wrapping_sum(acc[o][m], static_cast<int32_t>((n ^ first) - first));
        acc[o][m + kPairs] =
            wrapping_sum(acc[o][m + kPairs], static_cast<int32_t>(second - (n ^ second)));
      }
  }

  // Noise, division, clip; four outputs to a word: out[w][m] holds outputs 4w .. 4w + 3.
  static void finish(int32_t (*acc)[kLanes], const LowRank& noise, const Scale& by,
                     uint32_t (*out)[kLanes]) {
    add_noise(acc, noise);
    for (int w = 0; w < kTile / 4; ++w) {
      for (int m = 0; m < kLanes; ++m) out[w][m] = 0;
      for (int j = 0; j < 4; ++j) {
        const int32_t* v = acc[4 * w + j];
        if (by.power)
          for (int m = 0; m < kLanes; ++m)
            out[w][m] |= (static_cast<uint32_t>(clip(v[m] >> by.shift)) & 255u) << 8 * j;
        else
          for (int m = 0; m < kLanes; ++m)
            out[w][m] |=
                (static_cast<uint32_t>(divide(v[m] >> 4, by.divisor.half, by.divisor.reciprocal)) &
                 255u)
                << 8 * j;
      }
    }
  }

  // No dot-product instruction is named here, so the limit is `dot` on data in the first cache.
  static int64_t peak(int64_t rounds) {
    constexpr int kWords = 16;
    alignas(64) static const int8_t tile[kTile * 4 + kWords * kTile * 4] = {};
    alignas(64) static const int16_t x[kWords * 4 * kLanes] = {};
    alignas(64) int32_t acc[kTile][kLanes];
    for (int64_t i = 0; i < rounds; ++i) {
      dot(tile, x, kWords, acc);
      asm volatile("" : : "r"(acc) : "memory");
    }
    return rounds * kWords * 4 * kTile * kLanes;
  }

  // sum[m] += EXP2[u + 128] over the first `count` logits of a tile.
  static void exp2_sum(uint32_t (*words)[kLanes], int count, const Plan& plan, uint32_t* sum) {
    for (int o = 0; o < count; ++o)
      for (int m = 0; m < kLanes; ++m) {
        uint32_t u = (words[o / 4][m] >> 8 * (o % 4) & 255u) ^ 128u;
        sum[m] += plan.exp2_mantissa[u & 15] >> (15 - (u >> 4));
      }
  }

  // sum[m] += 2^(31 + (u + 128) / 16), rounded as fixed_point.py says, of them.
  static void exact_sum(uint32_t (*words)[kLanes], int count, const Plan& plan, uint64_t* sum) {
    for (int o = 0; o < count; ++o)
      for (int m = 0; m < kLanes; ++m) {
        uint32_t u = (words[o / 4][m] >> 8 * (o % 4) & 255u) ^ 128u;
        sum[m] += uint64_t{plan.exact_mantissa[u & 15]} << (u >> 4);
      }
  }
};

// Products of a linear leaf's weights with a block's inputs, tile by tile; amx_isa.h has the other
// way.
template <typename Isa>
struct TileMatrix {
  // Tile by tile into their places; `done(index)` follows each. See Layers::product.
  template <bool flip, typename Done>
  static inline __attribute__((always_inline)) void product(const int8_t* w,
                                                            const typename Isa::Prepared* x,
                                                            int words, int tiles, LowRank noise,
                                                            const Scale& by, const Places& places,
                                                            Done done) {
    for (int i = 0; i < tiles; ++i, w += Isa::tile_bytes(words)) {
      Isa::template tile<flip>(w, x, words, noise, by, places.at(i));
      if (noise.a) noise.a += kTile * kPairs;
      if (noise.pairs) noise.pairs += kTile / 2 * kPairs;
      if (noise.node) noise.node += kTile * kPairs;
      done(i);
    }
  }

  // The sums of every tile, without noise, go to `take(index, acc)`.
  template <typename Take>
  static void sums(const int8_t* w, const typename Isa::Prepared* x, int words, int tiles,
                   Take take) {
    for (int i = 0; i < tiles; ++i, w += Isa::tile_bytes(words)) {
      alignas(64) int32_t acc[kTile][kLanes];
      Isa::dot(w, x, words, acc);
      take(i, acc);
    }
  }
};
