// y = clip((sum of E[f] over the indices f of a list + noise) >> RIGHT), list after list. One
// simdgroup per pair.

namespace egg {

// Sums over the indices of a pair's list; those that are -1 name nothing.
template <int ACTIVE>
EGG_FUNCTION int2 over_list(const device int8_t* rows, const device int32_t* even,
                            const device int32_t* odd, uint stride, uint k) {
  int2 sum;
  sum.x = sum.y = 0;
  for (uint i = 0; i < ACTIVE; ++i) {
    const int f = even[i], g = odd[i];
    if (f >= 0) sum.x += rows[uint(f) * stride + k];
    if (g >= 0) sum.y += rows[uint(g) * stride + k];
  }
  return sum;
}

// The same of one column of A, lanes along the list: factors of B, of opposite signs.
template <int ACTIVE>
EGG_FUNCTION int2 factors(const device int8_t* A, const device int32_t* even,
                          const device int32_t* odd, uint q, Lane lane) {
  int2 sum;
  sum.x = sum.y = 0;
  for (uint i = lane.index; i < ACTIVE; i += 32) {
    const int f = even[i], g = odd[i];
    if (f >= 0) sum.x += A[uint(f) * RANK + q];
    if (g >= 0) sum.y -= A[uint(g) * RANK + q];
  }
  sum.x = simd_sum(sum.x);
  sum.y = simd_sum(sum.y);
  return sum;
}

// NODE_SHIFT: of noise on y, or -1 where the noise is E's. stride: indices of a member.
template <int D, int LISTS, int ACTIVE, int RIGHT, int NODE_SHIFT, typename Register>
EGG_FUNCTION void features(Register y, const device int8_t* E, Noise noise, uint leaf,
                           const device int32_t* indices, uint stride, uint members, uint member,
                           Lane lane) {
  constexpr bool ROWS = PERTURBED && NODE_SHIFT < 0, NODES = NODE_SHIFT >= 0 && NODE_SHIFT < 32;
  constexpr int COUNT = ROWS ? RANK : 1;
  const device int32_t* even = indices + min(member, members - 1) * stride;
  const device int32_t* odd = indices + min(member + 1, members - 1) * stride;
  const device int8_t* B = E;
  if (PERTURBED) B = slice(noise, leaf, member);
  for (uint list = 0; list < LISTS; ++list, even += ACTIVE, odd += ACTIVE) {
    int2 of[COUNT];
    if (ROWS) {
      EGG_EACH (q, COUNT) of[q] = factors<ACTIVE>(B + RANK * D, even, odd, q, lane);
    }
    // A lane has the same elements of y whatever D is: those that are its number, modulo 32.
    for (uint k = (lane.index - list * D) % 32; k < D; k += 32) {
      const uint o = list * D + k;
      int2 v = over_list<ACTIVE>(E, even, odd, D, k), n;
      n.x = n.y = 0;
      if (ROWS) {
        EGG_EACH (q, COUNT) {
          n.x = int(uint(n.x) + times(of[q].x, B[k * RANK + q]));
          n.y = int(uint(n.y) + times(of[q].y, B[k * RANK + q]));
        }
      }
      v.x = clip(int(uint(v.x) + uint(n.x >> SHIFT)) >> RIGHT);
      v.y = clip(int(uint(v.y) + uint(n.y >> SHIFT)) >> RIGHT);
      if (NODES) {
        const int plus = rounded(B[o], NODE_SHIFT);
        const bool turn = turned(noise, leaf, member);
        v.x = clip(v.x + (turn ? -plus : plus));
        v.y = clip(v.y + (turn ? plus : -plus));
      }
      put(y, o, member, both(v.x, v.y));
    }
  }
}

}  // namespace egg
