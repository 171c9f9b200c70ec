// Noise on weights, A B^T for the whole sequence; nodes.cu has the same functions for the other
// kind.

namespace egg {

// Elements of a vector leaf as a member sees them: clip(w +- (n1 n2 >> SHIFT)).
template <int COUNT>
__device__ inline uint32_t perturbed(const int8_t* w, Noise noise, uint32_t leaf, uint32_t member,
                                     uint32_t quad, bool odd) {
  const uint32_t plain = elements<COUNT>(w, quad);
  if (!PERTURBED) return plain;
  const Four two = products<COUNT>(slice(noise, leaf, member), quad);
  uint32_t v = 0;
  for (int e = 0; e < 4; ++e) {
    const int product = odd ? -two.of[e] : two.of[e];
    v |= as_byte(clip(byte_of(plain, e) + (product >> SHIFT)), e);
  }
  return v;
}

// The noise added to a member's row of an embedding: A[token] B^T >> SHIFT.
struct RowNoise {
  const int8_t *B, *A;
};

template <int D>
__device__ inline RowNoise row_noise(Noise noise, uint32_t leaf, uint32_t member, uint32_t token) {
  RowNoise mine;
  mine.B = slice(noise, leaf, member);
  mine.A = mine.B + RANK * (D + token);
  return mine;
}

template <int D>
__device__ inline Four on_row(RowNoise mine, uint32_t quad, bool odd) {
  uint32_t sums[4] = {0, 0, 0, 0};
  for (uint32_t q = 0; q < RANK; ++q) {
    const uint32_t b = factor<D>(mine.B, quad, q);
    for (int e = 0; e < 4; ++e) sums[e] += times(mine.A[q], byte_of(b, e));
  }
  Four n;
  for (int e = 0; e < 4; ++e) n.of[e] = int(odd ? 0u - sums[e] : sums[e]) >> SHIFT;
  return n;
}

// The noise added to sums of a matrix, outputs 4 quad .. 4 quad + 3: (x B) A^T >> SHIFT.
template <int K, int O, int DIVISOR>
__device__ inline Two on_sums(Noise noise, uint32_t leaf, const int* sums, uint32_t member,
                              uint32_t quad) {
  uint32_t even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
  const int8_t* A = slice(noise, leaf, member) + RANK * K;
#pragma unroll 4
  for (uint32_t q = 0; q < RANK; ++q) {
    const uint32_t a = factor<O>(A, quad, q);
    const int plus = sums[q * M + member], minus = sums[q * M + member + 1];
    for (int e = 0; e < 4; ++e) {
      even[e] += times(plus, byte_of(a, e));
      odd[e] += times(minus, byte_of(a, e));
    }
  }
  Two n;
  for (int e = 0; e < 4; ++e) {
    n.even[e] = int(even[e]) >> SHIFT;
    n.odd[e] = int(odd[e]) >> SHIFT;
  }
  return n;
}

}  // namespace egg
