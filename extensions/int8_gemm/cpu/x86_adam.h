// Adam's part of a leaf with AVX2 or AVX-512.
//
// Squares are 64-bit integers. Quotients and shares are doubles: with |mean| factor below 2^53 they
// are exact before they are cut off, as a quotient of such integers is never rounded up to a whole
// number.

template <typename V>
struct X86Adam : PortableAdam {
  using Half = typename V::Half;
  using Long = typename V::Long;
  using Real = typename V::Real;

  // v by / 256, toward zero.
  static V scaled(V v, int by) {
    const V size = v.abs32(), share = V::all32(by);
    const V low = size.both(V::all32(255)).mul32(share).srl32(8);
    return size.srl32(8).mul32(share).add32(low).with_sign32(v);
  }

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

  static void move(const int32_t* from, int32_t* to, Real change, Real decay) {
    const Real v = Real::of(V::half(from));
    V::storeu(to, v.sub(v.mul(decay).cut()).add(change).bounded(kFine).narrowed());
  }

  static int64_t part(const AdamLeaf& leaf, int64_t first, int64_t last, int64_t factor) {
    const auto& [from, to, votes, n, decay] = leaf;
    const Real by = Real::all(static_cast<double>(factor));
    const Real less = Real::all(static_cast<double>(decay) * 0x1p-24);
    int64_t count = 0, i = first;
    for (; i + V::kWidth <= last; i += V::kWidth) {
      const V z = V::loadu(votes + i).bounded32(kVote).sll32(4);
      const V mean = scaled(V::loadu(from.mean + i), 230).add32(scaled(z, 26));
      const V old = V::loadu(from.size + i);
      mean.storeu(to.mean + i);
      for (int j = 0; j < 2; ++j) {
        const int64_t at = i + j * V::kWidth / 2;
        const Half size = root(old.half(j), z.half(j));
        const Real change =
            Real::of(mean.half(j)).mul(by).div(Real::of(V::at_least_one(size))).cut();
        V::storeu(to.size + at, size);
        move(from.fine + at, to.fine + at, change, less);
        if (from.feedback) move(from.feedback + at, to.feedback + at, change, less);
      }
      count +=
          V::loadu(to.fine + i).add32(V::all32(kHalf)).move_bytes(from.weights + i, to.weights + i);
    }
    return count + PortableAdam::part(leaf, i, last, factor);
  }
};
