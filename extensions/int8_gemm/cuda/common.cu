// Shared by the kernels of stages: division, and the layout of activations.
//
// A register is int8 [features / 8][LD members][8]: four neighbouring features of a member are one
// word, the B operand of a matrix product reads two of these at once, and rows of LD = M + 4
// members begin in different banks. Members 2i and 2i + 1 are a pair. The constants M, LD, WARPS,
// THREADS, RANK, SHIFT and PERTURBED come first in the generated source. What noise does is in
// weights.cu and nodes.cu, of which a kernel has one.

namespace egg {

// floor(v / DIVISOR), or another number beyond -127 .. 127 on the same side. A power of two is a
// shift; else no negative numerator, so an unsigned division by a constant.
template <int DIVISOR>
__device__ inline int quotient(int v) {
  constexpr uint32_t BELOW = DIVISOR - 1;
  if ((DIVISOR & BELOW) == 0) {
    int by = 0;
    for (uint32_t ones = BELOW; ones > 0; ones /= 2) ++by;
    return v >> by;
  }
  const int least = -128 * DIVISOR;
  return int(uint32_t(max(least, min(v, -least - 1)) - least) / uint32_t(DIVISOR)) - 128;
}

// clip(floor(v / DIVISOR))
template <int DIVISOR>
__device__ inline int divide(int v) {
  return clip(quotient<DIVISOR>(v));
}

// clip(floor(v / DIVISOR)) of four values, as a word.
template <int DIVISOR>
__device__ inline uint32_t quotients(const int (&v)[4]) {
  if ((DIVISOR & (DIVISOR - 1)) == 0 && DIVISOR >= 256) {
    constexpr int FIRST = DIVISOR >= 256 ? DIVISOR / 256 : 1;
    int parts[4];
    for (int e = 0; e < 4; ++e) parts[e] = quotient<FIRST>(v[e]);
    return clipped_256ths(parts);
  }
  return clipped(quotient<DIVISOR>(v[0]), quotient<DIVISOR>(v[1]), quotient<DIVISOR>(v[2]),
                 quotient<DIVISOR>(v[3]));
}

// Products that wrap modulo 2^32.
__device__ inline uint32_t times(int a, int b) { return uint32_t(a) * uint32_t(b); }

// Offset in a register of the word of features 4 quad .. 4 quad + 3 of a member.
__device__ inline uint32_t word(uint32_t quad, uint32_t member) {
  return ((quad >> 1) * LD + member) * 2 + (quad & 1);
}

// Four features of a pair: x of the even member, y of the odd one.
__device__ inline uint2 get(const uint32_t* x, uint32_t quad, uint32_t member) {
  const uint32_t at = word(quad, member);
  return make_uint2(x[at], x[at + 2]);
}

__device__ inline void put(uint32_t* x, uint32_t quad, uint32_t member, uint2 v) {
  const uint32_t at = word(quad, member);
  x[at] = v.x;
  x[at + 2] = v.y;
}

// Eight neighbouring features: x, y of the even member of a pair, z, w of the odd one.
struct Octet {
  uint32_t index;
};

__device__ inline uint4 get(const uint32_t* x, Octet octet, uint32_t member) {
  return *reinterpret_cast<const uint4*>(x + (octet.index * LD + member) * 2);
}

__device__ inline void put(uint32_t* x, Octet octet, uint32_t member, uint4 v) {
  *reinterpret_cast<uint4*>(x + (octet.index * LD + member) * 2) = v;
}

// A lane of a matrix product: `group` is a row of A and a column of B, `quad` of four columns of C.
struct Lane {
  uint32_t index, warp, thread, group, quad;
};

__device__ inline Lane lane_of(uint32_t thread) {
  Lane lane;
  lane.thread = thread;
  lane.index = thread % 32;
  lane.warp = thread / 32;
  lane.group = lane.index / 4;
  lane.quad = lane.index % 4;
  return lane;
}

// The same, but not what the compiler has computed from it before: held over all phases of a token,
// addresses would take the registers of the products.
__device__ inline Lane lane_again(uint32_t thread) {
  asm volatile("" : "+r"(thread));
  return lane_of(thread);
}

// A lane where a warp looks along the features of a pair: 16 lanes for each member.
struct Row {
  uint32_t member, lane;
  bool odd;
};

__device__ inline Row row_of(uint32_t pair, Lane lane) {
  Row row;
  row.odd = lane.index >= 16;
  row.member = 2 * pair + row.odd;
  row.lane = lane.index % 16;
  return row;
}

// The same where a lane has octets of both members.
struct Pair {
  uint32_t member, lane;
};

__device__ inline Pair pair_of(uint32_t pair, Lane lane) { return {2 * pair, lane.index}; }

__device__ inline int over_pair(int v) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(0xffffffffu, v);
#else
  for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
#endif
}

// The sum over the lanes of a member.
__device__ inline int over_row(int v) {
  for (int mask = 8; mask > 0; mask /= 2) v += __shfl_xor_sync(0xffffffffu, v, mask);
  return v;
}

// Bytes of the noise table from anywhere as words: each by the two aligned ones that hold it. The
// table is made of whole words, and has one more than its bytes need.
struct Bytes {
  const int8_t* from;
  const uint32_t* words;
  uint32_t shift;
  __device__ inline uint32_t word(uint32_t i) const {
    return __funnelshift_r(__ldg(words + i), __ldg(words + i + 1), shift);
  }
};

__device__ inline Bytes bytes_at(const int8_t* table, uint32_t at) {
  Bytes bytes;
  bytes.from = table + at;
  bytes.words = reinterpret_cast<const uint32_t*>(table) + at / 4;
  bytes.shift = at * 8;  // of which a funnel shift takes five bits
  return bytes;
}

// The slice of a leaf that belongs to the pair of `member`, `offset` bytes on.
__device__ inline Bytes slice_bytes(Noise noise, uint32_t leaf, uint32_t member, uint32_t offset) {
  const uint32_t pair = min(noise.first + member / 2, noise.pairs - 1);
  return bytes_at(noise.table, uint32_t(noise.starts[leaf * noise.pairs + pair]) + offset);
}

// Column q of rows 4 quad .. 4 quad + 3 of a factor [COUNT][RANK]; zeros past its end, of which a
// quad is no more than fills an octet. The bytes begin with quad `begin`, which is 0 unless RANK is
// 1: an address that holds it serves all quads at a known distance.
template <int COUNT>
__device__ inline uint32_t factor(Bytes factors, uint32_t quad, uint32_t q, uint32_t begin) {
  const uint32_t i = quad - begin;
  if (RANK == 1 && (COUNT % 8 == 0 || 4 * quad + 3 < COUNT)) return factors.word(i);
  uint32_t v = 0;
  for (uint32_t e = 0; e < 4; ++e)
    if (4 * quad + e < COUNT) v |= as_byte(factors.from[(4 * i + e) * RANK + q], e);
  return v;
}

__device__ inline uint32_t begin_of(uint32_t quad) { return RANK == 1 ? quad : 0; }

// Bytes 4 quad .. 4 quad + 3 of a row [COUNT]; zeros past its end. Rows of whole words are aligned.
template <int COUNT>
__device__ inline uint32_t elements(const int8_t* from, uint32_t quad) {
  if (4 * quad >= COUNT) return 0;
  if (COUNT % 4 == 0) return __ldg(reinterpret_cast<const uint32_t*>(from) + quad);
  uint32_t v = 0;
  for (uint32_t e = 0; e < 4; ++e)
    if (4 * quad + e < COUNT) v |= as_byte(from[4 * quad + e], e);
  return v;
}

// The noise added to four features of a member, and of both members of a pair.
struct Four {
  int of[4];
};

struct Two {
  int even[4], odd[4];
};

// The products n1 n2 of elements 4 quad .. 4 quad + 3 of a vector leaf [COUNT].
template <int COUNT>
__device__ inline Four products(Bytes factors, uint32_t quad) {
  Four out;
  if (4 * quad + 3 < COUNT) {
    const uint32_t low = factors.word(2 * quad), high = factors.word(2 * quad + 1);
    out.of[0] = byte_of(low, 0) * byte_of(low, 1);
    out.of[1] = byte_of(low, 2) * byte_of(low, 3);
    out.of[2] = byte_of(high, 0) * byte_of(high, 1);
    out.of[3] = byte_of(high, 2) * byte_of(high, 3);
    return out;
  }
  for (uint32_t e = 0; e < 4; ++e) {
    const uint32_t i = 4 * quad + e;
    out.of[e] = i < COUNT ? int(factors.from[2 * i]) * int(factors.from[2 * i + 1]) : 0;
  }
  return out;
}

// Quads of a vector leaf, up to those of a whole tile of 32.
__device__ constexpr uint32_t kept_quads(uint32_t count) { return (count + 31) / 32 * 8; }

// The quads of a vector leaf that `keep_vector` left for the pair of a member.
template <int COUNT>
__device__ inline const uint2* kept_of(const uint2* kept, uint32_t member) {
  return kept + member / 2 * kept_quads(COUNT);
}

// A quad of them, and an octet as `get` has it.
template <int COUNT>
__device__ inline uint2 kept_at(const uint2* kept, uint32_t member, uint32_t quad) {
  return kept_of<COUNT>(kept, member)[quad];
}

template <int COUNT>
__device__ inline uint4 kept_at(const uint2* kept, uint32_t member, Octet octet) {
  const uint2* quads = kept_of<COUNT>(kept, member) + 2 * octet.index;
  const uint4 v = *reinterpret_cast<const uint4*>(quads);
  return make_uint4(v.x, v.z, v.y, v.w);
}

// One member's half of them.
struct KeptVector {
  const uint32_t* of;
  __device__ inline uint32_t word(uint32_t quad) const { return of[2 * quad]; }
};

// The state comes and goes as [members][D], the activations of a token as [D / 8][M][8]. What fills
// the last eight up is zero. All that follows deals out octets of pairs alike, so a thread may
// leave one and enter another without a barrier.
__device__ inline uint32_t pairs_octet(uint32_t i) { return i / (M / 2) * (LD / 2) + i % (M / 2); }

template <int D>
__device__ inline uint2 octet_of(const int8_t* row, uint32_t quad, bool there) {
  if (!there) return make_uint2(0, 0);
  return make_uint2(elements<D>(row, quad), elements<D>(row, quad + 1));
}

template <int D>
__device__ inline void load_state(uint32_t* s, const int8_t* state, uint32_t members, Lane lane) {
  for (uint32_t i = lane.thread; i < (D + 7) / 8 * (M / 2); i += THREADS) {
    const uint32_t member = i % (M / 2) * 2, quad = i / (M / 2) * 2;
    const int8_t* row = state + member * D;
    const uint2 even = octet_of<D>(row, quad, member < members);
    const uint2 odd = octet_of<D>(row + D, quad, member + 1 < members);
    reinterpret_cast<uint4*>(s)[pairs_octet(i)] = make_uint4(even.x, even.y, odd.x, odd.y);
  }
}

template <int D>
__device__ inline void store_state(const uint32_t* s, int8_t* state, uint32_t members, Lane lane) {
  for (uint32_t i = lane.thread; i < D * min(uint32_t(M), members); i += THREADS) {
    const uint32_t member = i / D, k = i % D;
    state[i] = int8_t(byte_of(s[word(k / 4, member)], k % 4));
  }
}

// The document mark zeroes a member's state.
template <int D>
__device__ inline void restart(uint32_t* s, const int32_t* tokens, uint32_t T, uint32_t members,
                               Lane lane) {
  lane = lane_again(lane.thread);
#pragma unroll
  for (uint32_t odd = 0; odd < 2; ++odd) {
    const uint32_t member = lane.thread % (M / 2) * 2 + odd;  // THREADS is a multiple of M / 2
    if (member >= members || tokens[member * T] != 0) continue;
#pragma unroll
    for (uint32_t i = lane.thread; i < (D + 7) / 8 * (M / 2); i += THREADS)
      reinterpret_cast<uint2*>(s)[2 * pairs_octet(i) + odd] = make_uint2(0, 0);
  }
}

template <int D>
__device__ inline void fill(uint32_t* x, Lane lane) {
  for (uint32_t i = lane.thread; i < (D + 7) / 8 * (M / 2); i += THREADS)
    reinterpret_cast<uint4*>(x)[pairs_octet(i)] = make_uint4(0, 0, 0, 0);
}

template <int D>
__device__ inline void load_tile(uint32_t* x, const int8_t* from, Lane lane) {
  const uint4* octets = reinterpret_cast<const uint4*>(from);
  lane = lane_again(lane.thread);
  for (uint32_t i = lane.thread; i < (D + 7) / 8 * (M / 2); i += THREADS)
    reinterpret_cast<uint4*>(x)[pairs_octet(i)] = octets[i];
}

template <int D>
__device__ inline void store_tile(const uint32_t* x, int8_t* to, Lane lane) {
  uint4* octets = reinterpret_cast<uint4*>(to);
  lane = lane_again(lane.thread);
  for (uint32_t i = lane.thread; i < (D + 7) / 8 * (M / 2); i += THREADS)
    octets[i] = reinterpret_cast<const uint4*>(x)[pairs_octet(i)];
}

}  // namespace egg
