// y = a [A], then b [B].

namespace egg {

// Element o of a pair. The rows that pad y hold the last of b; they are never read.
template <int A, int B, typename Left, typename Right>
EGG_FUNCTION char2 concat(Left a, Right b, uint o, uint member) {
  return o < A ? get(a, o, member) : get(b, min(o - A, uint(B - 1)), member);
}

}  // namespace egg
