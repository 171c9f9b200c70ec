// Noise on weights, A B^T for the whole sequence; nodes.cu has the same functions for the other
// kind.

namespace egg {

// Elements of a vector leaf as a member sees them: clip(w +- (n1 n2 >> SHIFT)).
template <int COUNT>
__device__ inline uint32_t perturbed(const int8_t* w, Noise noise, uint32_t leaf, uint32_t member,
                                     uint32_t quad, bool odd) {
  const uint32_t plain = elements<COUNT>(w, quad);
  if (!PERTURBED) return plain;
  const Four two = products<COUNT>(slice_bytes(noise, leaf, member, 0), quad);
  int v[4];
  for (int e = 0; e < 4; ++e) v[e] = byte_plus(plain, e, (odd ? -two.of[e] : two.of[e]) >> SHIFT);
  return clipped(v);
}

// A vector leaf as all members see it: [M / 2 pairs][quads], x of the even member, y of the odd
// one.
template <int COUNT>
__device__ inline void keep_vector(uint2* kept, const int8_t* w, Noise noise, uint32_t leaf,
                                   Lane lane) {
  constexpr uint32_t QUADS = kept_quads(COUNT);
  for (uint32_t i = lane.thread; i < M / 2 * QUADS; i += THREADS) {
    const uint32_t member = i / QUADS * 2, quad = i % QUADS;
    kept[i] = make_uint2(perturbed<COUNT>(w, noise, leaf, member, quad, false),
                         perturbed<COUNT>(w, noise, leaf, member, quad, true));
  }
}

// The noise added to a member's row of an embedding: A[token] B^T >> SHIFT.
struct RowNoise {
  Bytes B;
  const int8_t* A;
};

template <int D>
__device__ inline RowNoise row_noise(Noise noise, uint32_t leaf, uint32_t member, uint32_t token) {
  RowNoise mine;
  mine.B = slice_bytes(noise, leaf, member, 0);
  mine.A = mine.B.from + RANK * (D + token);
  return mine;
}

template <int D>
__device__ inline Four on_row(RowNoise mine, uint32_t quad, bool odd) {
  uint32_t sums[4] = {0, 0, 0, 0};
  for (uint32_t q = 0; q < RANK; ++q) {
    const uint32_t b = factor<D>(mine.B, quad, q, 0);
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
  const uint32_t begin = begin_of(quad);
  const Bytes A = slice_bytes(noise, leaf, member, RANK * K + 4 * begin);
#pragma unroll 4
  for (uint32_t q = 0; q < RANK; ++q) {
    const uint32_t a = factor<O>(A, quad, q, begin);
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
