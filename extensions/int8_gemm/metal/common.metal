// Shared by the kernels of stages: division, and the layout of activations.
//
// A register is int8 [features][M members], rows LD bytes apart, read as char2: members 2i and 2i +
// 1 are a pair and neighbours in a row, so one lane holds both and reads their noise once. The
// constants M, LD, THREADS, SIMDGROUPS, RANK, SHIFT and PERTURBED come first in the generated
// source. What noise does is in weights.metal and nodes.metal, of which a kernel has one.

namespace egg {

// The exponent of a power of two.
template <int N>
struct Exponent {
  enum { of = 1 + Exponent<N / 2>::of };
};

template <>
struct Exponent<1> {
  enum { of = 0 };
};

// clip(floor(v / DIVISOR)): a shift where DIVISOR is a power of two, else an unsigned division by a
// constant, of a numerator that is not negative.
template <int DIVISOR>
EGG_FUNCTION int divide(int v) {
  if ((DIVISOR & (DIVISOR - 1)) == 0) return clip(v >> Exponent<DIVISOR>::of);
  const int least = -128 * DIVISOR;
  return clip(int(uint(clamp(v, least, -least - 1) - least) / uint(DIVISOR)) - 128);
}

EGG_FUNCTION char2 both(int even, int odd) {
  char2 v;
  v.x = int8_t(even);
  v.y = int8_t(odd);
  return v;
}

// Products and sums that wrap modulo 2^32.
EGG_FUNCTION uint times(int a, int b) { return uint(a) * uint(b); }

template <typename Register>
EGG_FUNCTION char2 get(Register x, uint feature, uint member) {
  return x[feature * (LD / 2) + member / 2];
}

template <typename Register>
EGG_FUNCTION void put(Register x, uint feature, uint member, char2 v) {
  x[feature * (LD / 2) + member / 2] = v;
}

// A lane's place in an 8 x 8 matrix: its two elements are (row, column) and (row, column + 1).
struct Lane {
  uint index, simdgroup, in_group, row, column;
  threadgroup int* spare;  // of this simdgroup, where a product needs it
};

EGG_FUNCTION Lane lane_of(uint index, uint simdgroup, threadgroup int* spare) {
  Lane lane;
  lane.spare = spare;
  lane.index = index;
  lane.simdgroup = simdgroup;
  lane.in_group = simdgroup * 32 + index;
  lane.row = ((index >> 2) & 4) + ((index >> 1) & 3);
  lane.column = ((index >> 1) & 4) + (index & 1) * 2;
  return lane;
}

// The state comes and goes as [members][D], the activations of a token as [D][M].
template <int D, typename Register>
EGG_FUNCTION void load_state(Register s, const device int8_t* state, uint members, Lane lane) {
  for (uint m = 2 * lane.simdgroup; m < M; m += 2 * SIMDGROUPS)
    for (uint k = lane.index; k < D; k += 32)
      put(s, k, m,
          both(m < members ? state[m * D + k] : 0, m + 1 < members ? state[(m + 1) * D + k] : 0));
}

template <int D, typename Register>
EGG_FUNCTION void store_state(Register s, device int8_t* state, uint members, Lane lane) {
  for (uint m = 2 * lane.simdgroup; m < min(uint(M), members); m += 2 * SIMDGROUPS)
    for (uint k = lane.index; k < D; k += 32) {
      const char2 v = get(s, k, m);
      state[m * D + k] = v.x;
      if (m + 1 < members) state[(m + 1) * D + k] = v.y;
    }
}

// The document mark zeroes a member's state.
template <int D, typename Register>
EGG_FUNCTION void restart(Register s, const device int32_t* tokens, uint T, uint members,
                          Lane lane) {
  for (uint m = 0; m < min(uint(M), members); m += 2) {
    const bool even = tokens[m * T] == 0, odd = m + 1 < members && tokens[(m + 1) * T] == 0;
    if (!even && !odd) continue;
    for (uint k = lane.in_group; k < D; k += THREADS) {
      const char2 v = get(s, k, m);
      put(s, k, m, both(even ? 0 : v.x, odd ? 0 : v.y));
    }
  }
}

template <int D, typename Register>
EGG_FUNCTION void fill(Register x, Lane lane) {
  for (uint i = 2 * lane.in_group; i < D * M; i += 2 * THREADS) put(x, i / M, i % M, both(0, 0));
}

template <int D, typename Register>
EGG_FUNCTION void load_tile(Register x, const device int8_t* from, Lane lane) {
  const device char2* pairs = reinterpret_cast<const device char2*>(from);
  for (uint i = lane.in_group; i < D * M / 2; i += THREADS) put(x, 2 * i / M, 2 * i % M, pairs[i]);
}

template <int D, typename Register>
EGG_FUNCTION void store_tile(Register x, device int8_t* to, Lane lane) {
  device char2* pairs = reinterpret_cast<device char2*>(to);
  for (uint i = lane.in_group; i < D * M / 2; i += THREADS) pairs[i] = get(x, 2 * i / M, 2 * i % M);
}

}  // namespace egg
