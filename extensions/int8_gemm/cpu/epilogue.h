// What follows the sums of a product: noise, division, clip, four outputs to a word.
//
// One template for vectors of 4 (V128 of NEON), 8 (V256 of AVX2) and 16 lanes (V512 of AVX-512):
// packs and shuffles work within 128 bits in all, so that what is tested at one width is what runs
// at the other.

template <typename V>
struct Epilogue {
  // Adds the noise of four outputs from o on to lanes m .. m + V::kWidth - 1: of rank 1 in 16 bits,
  // of rank 1 where x.B has more, of any rank, on the nodes, and that in 16 bits. Apart, so that a
  // caller's accumulators stay in registers.
  static inline __attribute__((always_inline)) void perturb_pairs(V* v, const LowRank& noise, int o,
                                                                  int m) {
    const uint32_t* a = noise.pairs + o / 2 * kPairs + m % kPairs;
    const V x = V::loadu(noise.twice + m);
    for (int i = 0; i < 4; i += 2, a += kPairs) {
      const V n = V::loadu(a).mulhi16(x);
      v[i] = v[i].dot16(n, V::all32(1));
      v[i + 1] = v[i + 1].add32(n.sra32(16));
    }
  }

  static inline __attribute__((always_inline)) void perturb_wide(V* v, const LowRank& noise,
                                                                 const Scale& by, int o, int m) {
    const uint32_t* a = noise.pairs + o / 2 * kPairs + m % kPairs;
    const V xb = V::load(noise.xb[0] + m);
    const int down = 16 + up_of(noise.shift);
    for (int i = 0; i < 4; i += 2, a += kPairs) {
      const V two = V::loadu(a);
      const V first = by.grouped ? two.low16(two) : two.sll32(16);
      const V second = by.grouped ? two.high16(two) : two;
      v[i] = v[i].add32(xb.mul32(first.sra32(down)).sra32(noise.shift));
      v[i + 1] = v[i + 1].add32(xb.mul32(second.sra32(down)).sra32(noise.shift));
    }
  }

  // Noise and division of sums that fit 16 bits well enough, see Scale::grouped.
  template <bool power>
  static inline __attribute__((always_inline)) V grouped(const V* v, const LowRank& noise, int o,
                                                         int m, const Scale& by) {
    const uint32_t* a = noise.pairs + o / 2 * kPairs + m % kPairs;
    const V x = V::loadu(noise.twice + m);
    V low = v[0].packs32(v[1]), high = v[2].packs32(v[3]);
    low = early_quotients<power>(low.adds16(V::loadu(a).mulhi16(x)), by);
    high = early_quotients<power>(high.adds16(V::loadu(a + kPairs).mulhi16(x)), by);
    return low.packs16(high).max8(V::all8(-127)).turned();
  }

  static inline __attribute__((always_inline)) void perturb(V* v, const LowRank& noise, int o,
                                                            int m) {
    const int8_t* a = noise.a + o * kPairs + m % kPairs;
    for (int i = 0; i < 4; ++i) {
      V sum = V::all32(0);
      for (int j = 0; j < noise.rank; ++j) {
        const V wide = V::widened(a + static_cast<size_t>(j) * noise.stride + i * kPairs);
        sum = sum.add32(V::load(noise.xb[j] + m).mul32(wide));
      }
      v[i] = v[i].add32(sum.sra32(noise.shift));
    }
  }

  static inline __attribute__((always_inline)) void perturb_nodes(V* v, const LowRank& noise, int o,
                                                                  int m) {
    const V minus = V::loadu(noise.minus + m);
    for (int i = 0; i < 4; ++i) {
      V n = V::load(noise.node + (o + i) * kPairs + m % kPairs);
      n = n.flipped(minus).sub32(minus);
      v[i] = m < kPairs ? v[i].add32(n) : v[i].sub32(n);
    }
  }

  // The same in 16 bits.
  static inline __attribute__((always_inline)) void perturb_turned(V* v, const LowRank& noise,
                                                                   int o, int m) {
    const uint32_t* n = noise.pairs + o / 2 * kPairs + m % kPairs;
    V minus = V::loadu(noise.minus + m);
    if (m >= kPairs) minus = minus.flipped(V::all32(-1));
    const V sign = minus.either(V::all32(1));
    const V even = sign.both(V::all32(0xFFFF)), odd = sign.sll32(16);
    for (int i = 0; i < 4; i += 2, n += kPairs) {
      v[i] = v[i].dot16(V::loadu(n), even);
      v[i + 1] = v[i + 1].dot16(V::loadu(n), odd);
    }
  }

  // Floor division and clip to +-127; four outputs' int32 to the bytes of a word.
  template <bool power, bool early>
  static inline __attribute__((always_inline)) V word(const V* v, const Scale& by) {
    V low, high;
    if (early) {
      low = early_quotients<power>(v[0].packs32(v[1]), by);
      high = early_quotients<power>(v[2].packs32(v[3]), by);
    } else if (power) {
      low = v[0].sra32(by.shift).packs32(v[1].sra32(by.shift));
      high = v[2].sra32(by.shift).packs32(v[3].sra32(by.shift));
    } else {
      low = quotients(v[0], v[1], by);
      high = quotients(v[2], v[3], by);
    }
    return low.packs16(high).max8(V::all8(-127)).turned();
  }

  // The same by a power of two of at least 256 (by 256 if early, see Scale): the high bytes of sums
  // in 16 bits.
  template <bool early>
  static inline __attribute__((always_inline)) V high_bytes(const V* v, const Scale& by) {
    V u[4] = {v[0], v[1], v[2], v[3]};
    for (int i = 0; !early && i < 4; ++i) u[i] = u[i].sra32(by.shift - 8);
    return u[0].packs32(u[1]).high_turned(u[2].packs32(u[3])).max8(V::all8(-127));
  }

  // See Scale::early.
  template <bool power>
  static inline __attribute__((always_inline)) V early_quotients(V v, const Scale& by) {
    return power ? v.sra16(by.shift)
                 : v.sra16(3).either(V::all16(1)).mulhi16(V::all16(by.odd_factor));
  }

  // Of two vectors in 16 bits, see Scale::factor.
  static inline __attribute__((always_inline)) V quotients(V a, V b, const Scale& by) {
    const V half = V::all32(by.divisor.half);
    V u = a.sra32(4).add32(half).packus32(b.sra32(4).add32(half));
    u = u.min_u16(V::all16(2 * by.divisor.half - 1)).mulhi_u16(V::all16(by.factor));
    return u.srl16(by.bits).sub16(V::all16(128));
  }

  // A tile's sums to its words.
  static void finish(const int32_t (*acc)[kLanes], const LowRank& noise, const Scale& by,
                     uint32_t (*out)[kLanes]) {
    divided(by, [&](auto power, auto early) { finish<power(), early()>(acc, noise, by, out); });
  }
  template <bool power, bool early>
  static void finish(const int32_t (*acc)[kLanes], const LowRank& noise, const Scale& by,
                     uint32_t (*out)[kLanes]) {
    for (int w = 0; w < kTile / 4; ++w)
      for (int m = 0; m < kLanes; m += V::kWidth)
        piece<power, early>(acc + 4 * w, noise, 4 * w, m, by, out[w] + m);
  }

  // Four outputs from o on and V::kWidth lanes from m on; acc has their sums.
  template <bool power, bool early>
  static inline __attribute__((always_inline)) void piece(const int32_t (*acc)[kLanes],
                                                          const LowRank& noise, int o, int m,
                                                          const Scale& by, uint32_t* out) {
    V v[4];
    for (int i = 0; i < 4; ++i) v[i] = V::load(acc[i] + m);
    if (early && noise.fits && by.grouped) return grouped<power>(v, noise, o, m, by).store(out);
    add_noise(v, noise, o, m, by);
    word<power, early>(v, by).store(out);
  }

  // The noise of four outputs, whichever there is.
  static inline __attribute__((always_inline)) void add_noise(V* v, const LowRank& noise, int o,
                                                              int m, const Scale& by) {
    if (noise.fits)
      perturb_pairs(v, noise, o, m);
    else if (V::kTurns16 && noise.pairs && !noise.rank)
      perturb_turned(v, noise, o, m);
    else if (noise.pairs)
      perturb_wide(v, noise, by, o, m);
    else if (noise.rank)
      perturb(v, noise, o, m);
    if (noise.node) perturb_nodes(v, noise, o, m);
  }
};
