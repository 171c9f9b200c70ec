// Adam's part of a leaf with AVX2 or AVX-512.
//
// Votes and sizes below 2^22, as nearly all are, have squares that are exact in doubles; of larger
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
  static V faded(V s) {
    if (s.none32(-1)) return s;
    return V::joined(faded(Real::of(s.half(0))).narrowed(), faded(Real::of(s.half(1))).narrowed());
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
    return leaf.decay ? part_of<true>(leaf, first, last, factor, past)
                      : part_of<false>(leaf, first, last, factor, past);
  }

  template <bool shrinks>
  static int64_t part_of(const AdamLeaf& leaf, int64_t first, int64_t last, int64_t factor,
                         bool past) {
    const auto& [from, to, votes, n, decay] = leaf;
    const Real by = Real::all(static_cast<double>(factor));
    const Real less = Real::all(static_cast<double>(decay) * 0x1p-24);
    const Real kept = Real::all(230.0 / 256), added = Real::all(26.0 / 256);
    past = past && aligned<4 * V::kWidth>(to.mean + first, to.size + first, to.fine + first,
                                          to.feedback ? to.feedback + first : nullptr);
    auto put = [past](V v, int32_t* p) { past ? v.stream(p) : v.storeu(p); };
    int64_t count = 0, i = first;
    for (; i + V::kWidth <= last; i += V::kWidth) {
      const V z = V::loadu(votes + i).bounded32(kVote).sll32(4);
      const V mean = V::loadu(from.mean + i), size = V::loadu(from.size + i);
      const bool small = z.abs32().either(size).none32(-(1 << 22));
      const bool still = small && z.none32(-1), rests = still && mean.none32(-1);
      if (rests && !shrinks) {
        put(mean, to.mean + i), put(faded(size), to.size + i);
        if (from.feedback) put(V::loadu(from.feedback + i).bounded32(kFine), to.feedback + i);
        const V fine = V::loadu(from.fine + i).bounded32(kFine);
        put(fine, to.fine + i);
        count += fine.add32(V::all32(kHalf)).move_bytes(from.weights + i, to.weights + i);
        continue;
      }
      Real means[2], sizes[2], change[2];
      for (int j = 0; j < 2; ++j) {
        const Real vote = Real::of(z.half(j)), old = Real::of(mean.half(j));
        means[j] = old.mul(kept).cut().add(vote.mul(added).cut());
        sizes[j] = still   ? faded(Real::of(size.half(j)))
                   : small ? small_root(Real::of(size.half(j)), vote)
                           : Real::of(root(size.half(j), z.half(j)));
        change[j] = rests ? means[j] : means[j].mul(by).div(sizes[j].at_least_one()).cut();
      }
      put(joined(means), to.mean + i), put(joined(sizes), to.size + i);
      if (from.feedback) put(moved<shrinks>(from.feedback + i, change, less), to.feedback + i);
      const V fine = moved<shrinks>(from.fine + i, change, less);
      put(fine, to.fine + i);
      count += fine.add32(V::all32(kHalf)).move_bytes(from.weights + i, to.weights + i);
    }
    if (past) _mm_sfence();
    return count + PortableAdam::part(leaf, i, last, factor, past);
  }
};
