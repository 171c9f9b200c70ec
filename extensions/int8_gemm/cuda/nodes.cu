// Noise on the outputs of layers ("nodes"), with a new sign at every token; weights.cu has the same
// functions for the other kind. SHIFTS of the stage's leaves come first in the source.

namespace egg {

constexpr int SILENT = 63;  // the shift of a leaf without noise of its own

__device__ inline Turns turns(Noise noise, uint32_t leaf, uint32_t member) {
  const uint32_t pair = min(noise.first + member / 2, noise.pairs - 1);
  return turns_of(noise.signs[(leaf * noise.pairs + pair) * noise.words + noise.t / 32], noise.t);
}

// Whether a member subtracts the noise.
__device__ inline bool subtracts(Turns turn, bool odd) { return odd ? !turn.second : turn.first; }

// Elements of a vector leaf as a member sees them: clip(w +- (n1 n2 >> shift)).
template <int COUNT>
__device__ inline uint32_t perturbed(const int8_t* w, Noise noise, uint32_t leaf, uint32_t member,
                                     uint32_t quad, bool odd) {
  const uint32_t plain = elements<COUNT>(w, quad);
  const int shift = SHIFTS[leaf];
  if (shift == SILENT) return plain;
  const Four two = products<COUNT>(slice_bytes(noise, leaf, member, 0), quad);
  const bool minus = subtracts(turns(noise, leaf, member), odd);
  int v[4];
  for (int e = 0; e < 4; ++e) v[e] = byte_plus(plain, e, (minus ? -two.of[e] : two.of[e]) >> shift);
  return clipped(v);
}

// The noise added to a member's row of an embedding, whatever the token: B.
struct RowNoise {
  Bytes B;
  int shift;
  Turns turn;
};

template <int D>
__device__ inline RowNoise row_noise(Noise noise, uint32_t leaf, uint32_t member, uint32_t) {
  RowNoise mine;
  mine.B = slice_bytes(noise, leaf, member, 0);
  mine.shift = SHIFTS[leaf];
  mine.turn = turns(noise, leaf, member);
  return mine;
}

template <int D>
__device__ inline Four on_row(RowNoise mine, uint32_t quad, bool odd) {
  Four n = {0, 0, 0, 0};
  if (mine.shift == SILENT) return n;
  const uint32_t b = factor<D>(mine.B, quad, 0, 0);
  for (int e = 0; e < 4; ++e) {
    const int v = rounded(byte_of(b, e), mine.shift);
    n.of[e] = subtracts(mine.turn, odd) ? -v : v;
  }
  return n;
}

// The noise added to sums of a matrix, outputs 4 quad .. 4 quad + 3: A in units of an output's last
// bit.
template <int K, int O, int DIVISOR>
__device__ inline Two on_sums(Noise noise, uint32_t leaf, const int*, uint32_t member,
                              uint32_t quad) {
  const int shift = SHIFTS[leaf];
  if (shift == SILENT) return Two();
  const Turns turn = turns(noise, leaf, member);
  const uint32_t a = factor<O>(slice_bytes(noise, leaf, member, K + 4 * quad), quad, 0, quad);
  Two n;
  for (int e = 0; e < 4; ++e) {
    const int v = rounded(DIVISOR * byte_of(a, e), shift);
    n.even[e] = subtracts(turn, false) ? -v : v;
    n.odd[e] = subtracts(turn, true) ? -v : v;
  }
  return n;
}

}  // namespace egg
