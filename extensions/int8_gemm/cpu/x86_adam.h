// Adam's part of a leaf with AVX2 or AVX-512.
//
// Nearly all numbers of a sparse layer are small, and are computed in 32 bits; see `small_part`.
// Of the others votes and sizes below 2^22 have squares that are exact in doubles; of larger
// ones they are 64-bit integers. Quotients and shares are doubles: with |mean| factor below 2^53
// they are exact before they are cut off, as a quotient of such integers is never rounded up to a
// whole number.

template <typename V>
struct X86Adam : PortableAdam {
  using Half = typename V::Half;
  using Long = typename V::Long;
  using Real = typename V::Real;

  static Long times13(Long v) {
    const Long four = v.sll(2);
    return v.add(four).add(four.add(four));
  }

  // As PortableAdam::root.
  static Half root(Half s, Half z) {
    const Long old = Long::square(s), high = old.srl(8), low = old.both(Long::all(255));
    Long square = high.sll(8).sub(times13(high));  // x 243
    square = square.add(low.mul_low(Long::all(243)).srl(8));
    square = square.add(times13(Long::square(z).srl(8)));
    Long r = Long::cut(square.real().sqrt());
    r = r.add(r.mul_low(r).above(square));
    const Long next = r.add(Long::all(1));
    return next.add(next.mul_low(next).above(square)).narrowed();
  }

  // The same where both are below 2^22. A root of a number below 2^44 that is not whole is further
  // from the next one than its rounding is wrong.
  static Real small_root(Real s, Real z) {
    const Real old = s.mul(s).mul(Real::all(243.0 / 256)).cut();
    const Real added = z.mul(z).mul(Real::all(1.0 / 256)).cut().mul(Real::all(13));
    return old.add(added).sqrt().cut();
  }

  // The same without a vote; compared with whole roots for every number below 2^22.
  static Real faded(Real s) { return s.mul(Real::all(0x1.f2d4a45635640p-1)).cut(); }

  // The same where s is below 2^11 and a vote's size, z / 16, below 2^7, here also 13 times: the
  // root of a number below 2^22 in single precision, cut off, is its whole root.
  static V root_of_small(V s, V vote, V vote13) {
    const V zero = V::all32(0), s13 = s.mul16(V::all32(13));
    const V less = zero.dot16(s, s13).add32(V::all32(255)).srl32(8);
    return zero.dot16(s, s).sub32(less).add32(zero.dot16(vote, vote13)).root32();
  }

  template <size_t by, typename... P>
  static bool aligned(const P*... p) {
    return ((reinterpret_cast<uintptr_t>(p) % by == 0) && ...);
  }

  static V joined(const Real* v) { return V::joined(v[0].narrowed(), v[1].narrowed()); }

  template <bool shrinks>
  static V moved(const int32_t* from, const Real* change, Real decay) {
    const V fine = V::loadu(from);
    Real v[2];
    for (int j = 0; j < 2; ++j) {
      const Real old = Real::of(fine.half(j));
      const Real kept = shrinks ? old.sub(old.mul(decay).cut()) : old;
      v[j] = kept.add(change[j]).bounded(kFine);
    }
    return joined(v);
  }

  static int64_t part(const AdamLeaf& leaf, int64_t first, int64_t last, int64_t factor,
                      bool past) {
    const auto& to = leaf.to;
    past = past && aligned<4 * V::kWidth>(to.mean + first, to.size + first, to.fine + first,
                                          to.feedback ? to.feedback + first : nullptr);
    const bool small = !leaf.decay && !to.feedback && factor <= kSmallFactor;
    const int64_t end = last - (last - first) % V::kWidth;
    int64_t count = 0, i = first;
    while (i < end) {
      if (small) count += small_part(leaf, &i, end, factor, past);
      const int64_t stop = small && end - i > kStep ? i + kStep : end;
      count += leaf.decay ? part_of<true>(leaf, i, stop, factor, past)
                          : part_of<false>(leaf, i, stop, factor, past);
      i = stop;
    }
    if (past) _mm_sfence();
    return count + PortableAdam::part(leaf, end, last, factor, past);
  }

  static void put(V v, int32_t* to, bool past) { past ? v.stream(to) : v.storeu(to); }

  static constexpr int kStep = 2 * V::kWidth;
  static constexpr int64_t kSmallFactor = 1 << 18;

  // Values from *at on, as far as votes are below 2^7, and means and sizes below 2^11; moves *at.
  //
  // A quotient of numbers below 2^29 in single precision is wrong by less than a half if it is
  // below 2^21, so cut off it is wrong by one at most, and what it leaves says which way.
  [[gnu::noinline]] static int64_t small_part(const AdamLeaf leaf, int64_t* at, int64_t last,
                                              int64_t factor, bool past) {
    const V zero = V::all32(0), one = V::all32(1), by = V::all32(static_cast<int32_t>(factor));
    int64_t count = 0, i = *at;
    for (; i + kStep <= last; i += kStep) {
      V votes[2], means[2], sizes[2], z = zero, m = zero, s = zero;
      for (int k = 0; k < 2; ++k) {
        const int64_t j = i + k * V::kWidth;
        votes[k] = V::loadu(leaf.votes + j);
        means[k] = V::loadu(leaf.from.mean + j), sizes[k] = V::loadu(leaf.from.size + j);
        z = z.either(votes[k].abs32()), m = m.either(means[k].abs32()), s = s.either(sizes[k]);
      }
      if (!z.none32(-(1 << 7)) || !m.either(s).none32(-(1 << 11))) break;
      V step[2] = {zero, zero};
      if (!z.either(m).none32(-1)) {
        V largest = zero;
        for (int k = 0; k < 2; ++k) {
          const V vote = votes[k].abs32(), vote13 = vote.mul16(V::all32(13));
          const V old = means[k].abs32().mulhi_u16(V::all32(230 << 8));
          sizes[k] = root_of_small(sizes[k], vote, vote13);
          means[k] = old.signed_as32(means[k]).add32(vote13.srl32(3).signed_as32(votes[k]));
          const V whole = means[k].abs32().mul32(by), part = sizes[k].max32(one);
          const V quotient = whole.quotient32(part);
          const V rest = whole.sub32(quotient.mul32(part));
          const V more = part.sub32(one).sub32(rest).sra32(31), less = rest.sra32(31);
          step[k] = quotient.sub32(more).add32(less).signed_as32(means[k]);
          largest = largest.either(quotient);
        }
        if (!largest.none32(-(1 << 21))) break;
      } else if (!s.none32(-1)) {
        for (V& size : sizes) size = root_of_small(size, zero, zero);
      }
      V fine[2];
      for (int k = 0; k < 2; ++k) {
        const int64_t j = i + k * V::kWidth;
        put(means[k], leaf.to.mean + j, past), put(sizes[k], leaf.to.size + j, past);
        // Bounded first, as what is there may be anything.
        fine[k] = V::loadu(leaf.from.fine + j).bounded32(1 << 30).add32(step[k]).bounded32(kFine);
        put(fine[k], leaf.to.fine + j, past);
        fine[k] = fine[k].add32(V::all32(kHalf));
      }
      count += V::move_bytes(fine, leaf.from.weights + i, leaf.to.weights + i);
    }
    *at = i;
    return count;
  }

  template <bool shrinks>
  static int64_t part_of(const AdamLeaf& leaf, int64_t first, int64_t last, int64_t factor,
                         bool past) {
    const auto& [from, to, votes, n, decay] = leaf;
    const Real by = Real::all(static_cast<double>(factor));
    const Real less = Real::all(static_cast<double>(decay) * 0x1p-24);
    const Real kept = Real::all(230.0 / 256), added = Real::all(26.0 / 256);
    int64_t count = 0;
    for (int64_t i = first; i < last; i += V::kWidth) {
      const V z = V::loadu(votes + i).bounded32(kVote).sll32(4);
      const V mean = V::loadu(from.mean + i), size = V::loadu(from.size + i);
      const bool small = z.abs32().either(size).none32(-(1 << 22));
      const bool still = small && z.none32(-1), rests = still && mean.none32(-1);
      Real means[2], sizes[2], change[2];
      for (int j = 0; j < 2; ++j) {
        const Real vote = Real::of(z.half(j)), old = Real::of(mean.half(j));
        means[j] = old.mul(kept).cut().add(vote.mul(added).cut());
        sizes[j] = still   ? faded(Real::of(size.half(j)))
                   : small ? small_root(Real::of(size.half(j)), vote)
                           : Real::of(root(size.half(j), z.half(j)));
        change[j] = rests ? means[j] : means[j].mul(by).div(sizes[j].at_least_one()).cut();
      }
      put(joined(means), to.mean + i, past), put(joined(sizes), to.size + i, past);
      if (from.feedback)
        put(moved<shrinks>(from.feedback + i, change, less), to.feedback + i, past);
      const V fine = moved<shrinks>(from.fine + i, change, less);
      put(fine, to.fine + i, past);
      count += fine.add32(V::all32(kHalf)).move_bytes(from.weights + i, to.weights + i);
    }
    return count;
  }
};
