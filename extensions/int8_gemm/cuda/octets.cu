// Products for lanes that have octets of pairs: 64 outputs in a tile, noise on weights.

namespace egg {

// Factors of noise that a launch has put in order, in device memory: words of them, from anywhere
// in the table, would be read again at every token.
struct BlockNoise : Noise {
  const uint4* kept = nullptr;
};

// A matrix in the stage: its number, and where its factors A and B begin in `kept`.
struct Leaf {
  uint32_t index, A, B;
  __device__ inline operator uint32_t() const { return index; }
};

__device__ inline uint2 two_words(Bytes bytes) { return make_uint2(bytes.word(0), bytes.word(1)); }

// A of the block's pairs: [outputs / 64][M / 16][lane], what `linear` adds to two octets of a lane.
template <int K, int O>
__device__ inline void keep_A(uint4* kept, Noise noise, Leaf leaf, Lane lane) {
  constexpr uint32_t FOURS = (M + 8) / 16;  // of pairs: M is 16 or more where lanes have octets
  constexpr uint32_t COUNT = O / 64 * FOURS * 32;
#pragma unroll 4
  for (uint32_t turn = 0; turn < turns(COUNT); ++turn) {
    const uint32_t i = turn * THREADS + lane.thread;
    if (COUNT % THREADS && i >= COUNT) break;
    const Lane of = lane_of(i % 32);
    const uint32_t member = i / 32 % FOURS * 16 + 4 * of.quad;
    const uint32_t at = K + i / 32 / FOURS * 64 + 8 * of.group;
    const uint2 first = two_words(slice_bytes(noise, leaf, member, at));
    const uint2 second = two_words(slice_bytes(noise, leaf, member + 2, at));
    kept[leaf.A + i] = make_uint4(first.x, first.y, second.x, second.y);
  }
}

// B of the block's pairs: [M / 2][K].
template <int K>
__device__ inline void keep_B(uint4* kept, Noise noise, Leaf leaf, Lane lane) {
  uint2* octets = reinterpret_cast<uint2*>(kept + leaf.B);
  constexpr uint32_t COUNT = M / 2 * (K / 8);
#pragma unroll 4
  for (uint32_t turn = 0; turn < turns(COUNT); ++turn) {
    const uint32_t i = turn * THREADS + lane.thread;
    if (COUNT % THREADS && i >= COUNT) break;
    octets[i] = two_words(slice_bytes(noise, leaf, i / (K / 8) * 2, i % (K / 8) * 8));
  }
}

// The weights of 64 outputs and 32 inputs.
__device__ inline void load(uint4 (&a)[4], const uint4* w) {
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = __ldg(w + 32 * i);
}

// Adds their products with 8 J members. MORE: those of the next inputs, at w, take their place.
template <bool MORE, int J>
__device__ inline void add_step(int (&total)[4][J][4], uint4 (&a)[4], const uint4* w,
                                const uint4* of_x) {
  uint4 v[J / 2];
#pragma unroll
  for (int k = 0; k < J / 2; ++k) v[k] = of_x[8 * k];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int k = 0; k < J / 2; ++k) {
      mma(total[i][2 * k], a[i], make_uint2(v[k].x, v[k].y));
      mma(total[i][2 * k + 1], a[i], make_uint2(v[k].z, v[k].w));
    }
    if (MORE) a[i] = __ldg(w + 32 * i);
  }
}

// As `product`, but added to what is there: total[2 t + i][2 k + f][2 h + p] is output 64 tile +
// 8 group + 4 t + 2 i + h of W x, member column + 16 k + 4 quad + 2 p + f. A lane's four words of x
// are of two neighbouring members, and its sums of eight neighbouring outputs of pairs. a: the
// weights of the first inputs, which `load` gave; w: those of the next ones.
template <int K, int J>
__device__ inline void add_product(int (&total)[4][J][4], uint4 (&a)[4], const uint4* w,
                                   const uint32_t* x, uint32_t column, Lane lane) {
  constexpr uint32_t STEPS = (K + 31) / 32;
  const uint4* of_x = reinterpret_cast<const uint4*>(x + 2 * (lane.quad * LD + column));
  of_x += lane.group;
#pragma unroll 1
  for (uint32_t step = 1; step < STEPS; ++step) {
    add_step<true>(total, a, w, of_x);
    w += 128;
    of_x += 2 * LD;
  }
  add_step<false>(total, a, w, of_x);
}

// As `on_sums` of rank 1, of eight neighbouring outputs; a: their bytes of A. Where x B times A
// does not wrap, the upper word of a product makes a shift as well.
struct Eight {
  int even[8], odd[8];
};

template <int K>
__device__ inline Eight on_octet(uint2 a, uint2 sums) {
  constexpr int REST = SHIFT > 8 ? SHIFT - 8 : 0;
  const int plus = int(sums.x), minus = int(sums.y);
  Eight n;
  for (int e = 0; e < 8; ++e) {
    const uint32_t word = e < 4 ? a.x : a.y;
    if (SHIFT >= 8 && K <= 1048) {  // K 127^3 < 2^31
      n.even[e] = __mulhi(plus, upper_byte(word, e % 4)) >> REST;
      n.odd[e] = __mulhi(minus, upper_byte(word, e % 4)) >> REST;
    } else {
      n.even[e] = int(times(plus, byte_of(word, e % 4))) >> SHIFT;
      n.odd[e] = int(times(minus, byte_of(word, e % 4))) >> SHIFT;
    }
  }
  return n;
}

// Member of a lane's j-th octets, which are of it and the next one.
__device__ inline uint32_t member_of(uint32_t column, int j, Lane lane) {
  return column + 16 * (j / 2) + 4 * lane.quad + 2 * (j % 2);
}

// Puts the noise into the sums of a lane's j-th octets.
template <int J>
__device__ inline void begin_with(int (&total)[4][J][4], const Eight& n, int j) {
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    total[e / 2][j / 2 * 2][e % 2 * 2 + j % 2] = n.even[e];
    total[e / 2][j / 2 * 2 + 1][e % 2 * 2 + j % 2] = n.odd[e];
  }
}

template <int K, int O, int DIVISOR, int J>
__device__ inline void begin_sums(int (&total)[4][J][4], const int* sums, BlockNoise noise,
                                  Leaf leaf, uint32_t tile, uint32_t column, Lane lane) {
  const uint4* A = noise.kept + leaf.A + (tile * (M / 16) + column / 16) * 32 + lane.index;
#pragma unroll
  for (int j = 0; j < J; j += 2) {
    const uint4 a = A[j / 2 * 32];
    const int* of = sums + member_of(column, j, lane);
    const uint4 both = *reinterpret_cast<const uint4*>(of);  // of two neighbouring pairs
    begin_with(total, on_octet<K>(make_uint2(a.x, a.y), make_uint2(both.x, both.y)), j);
    begin_with(total, on_octet<K>(make_uint2(a.z, a.w), make_uint2(both.z, both.w)), j + 1);
  }
}

// The same of any rank, with the noise where it is.
template <int K, int O, int DIVISOR, int J>
__device__ inline void begin_sums(int (&total)[4][J][4], const int* sums, Noise noise,
                                  uint32_t leaf, uint32_t tile, uint32_t column, Lane lane) {
#pragma unroll
  for (int j = 0; j < J; ++j) {
    Eight n = {};
    for (int t = 0; PERTURBED && t < 2; ++t) {
      const uint32_t member = member_of(column, j, lane), quad = 16 * tile + 2 * lane.group + t;
      const Two two = on_sums<K, O, DIVISOR>(noise, leaf, sums, member, quad);
      for (int e = 0; e < 4; ++e) {
        n.even[4 * t + e] = two.even[e];
        n.odd[4 * t + e] = two.odd[e];
      }
    }
    begin_with(total, n, j);
  }
}

// y[j]: outputs 64 tile + 8 group + 0..7 of members member_of(j) and the next. The sums begin with
// the noise.
template <int K, int O, int DIVISOR, typename Where, typename Place, int J>
__device__ inline void linear(uint4 (&y)[J], const int8_t* W, const uint32_t* x, const int* sums,
                              Where noise, Place leaf, uint32_t tile, uint32_t column, Lane lane) {
  const uint4* w = reinterpret_cast<const uint4*>(W) + tile * ((K + 31) / 32) * 128 + lane.index;
  uint4 a[4];
  constexpr bool EARLY = K * O > 65536;  // on their way while the noise is made
  if (EARLY) load(a, w);
  int total[4][J][4];
  begin_sums<K, O, DIVISOR>(total, sums, noise, leaf, tile, column, lane);
  if (!EARLY) load(a, w);
  add_product<K>(total, a, w + 128, x, column, lane);
#pragma unroll
  for (int j = 0; j < J; ++j) {
    uint32_t words[2][2];
#pragma unroll
    for (int odd = 0; odd < 2; ++odd)
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        int v[4];
        for (int e = 0; e < 4; ++e) v[e] = total[2 * t + e / 2][j / 2 * 2 + odd][e % 2 * 2 + j % 2];
        words[odd][t] = quotients<DIVISOR>(v);
      }
    y[j] = make_uint4(words[0][0], words[0][1], words[1][0], words[1][1]);
  }
}

// As `dots`, for a lane that has octets of both members of pairs.
template <int K, uint32_t N>
__device__ inline void dots(int* sums, const uint32_t* x, BlockNoise noise, Leaf leaf,
                            Pairs<N> pairs) {
  constexpr uint32_t OCTETS = K / 256, EACH = at_once(N, OCTETS);
  const uint2* B = reinterpret_cast<const uint2*>(noise.kept + leaf.B) + pairs.lane;
  for (uint32_t n = 0; n < N; n += EACH) {
    int even[EACH], odd[EACH];
#pragma unroll
    for (uint32_t e = 0; e < EACH; ++e) {
      const uint32_t member = pairs.member(n + e);
      even[e] = odd[e] = 0;
#pragma unroll
      for (uint32_t i = 0; i < OCTETS; ++i) {
        const uint4 v = get(x, Octet{pairs.lane + 32 * i}, member);
        const uint2 b = B[member / 2 * (K / 8) + 32 * i];
        even[e] = __dp4a(int(v.y), int(b.y), __dp4a(int(v.x), int(b.x), even[e]));
        odd[e] = __dp4a(int(v.w), int(b.y), __dp4a(int(v.z), int(b.x), odd[e]));
      }
    }
#pragma unroll
    for (uint32_t e = 0; e < EACH; ++e) {
      even[e] = over_pair(even[e]);
      odd[e] = over_pair(odd[e]);
    }
    if (pairs.lane == 0)
#pragma unroll
      for (uint32_t e = 0; e < EACH; ++e)
        *reinterpret_cast<uint2*>(sums + pairs.member(n + e)) =
            make_uint2(uint32_t(even[e]), uint32_t(-odd[e]));
  }
}

}  // namespace egg
