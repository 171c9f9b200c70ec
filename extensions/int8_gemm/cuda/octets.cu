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
  for (uint32_t i = lane.thread; i < O / 64 * FOURS * 32; i += THREADS) {
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
  for (uint32_t i = lane.thread; i < M / 2 * (K / 8); i += THREADS)
    octets[i] = two_words(slice_bytes(noise, leaf, i / (K / 8) * 2, i % (K / 8) * 8));
}

// As `product`, but added to what is there: total[2 t + i][2 k + f][2 h + p] is output 64 tile +
// 8 group + 4 t + 2 i + h of W x, member column + 16 k + 4 quad + 2 p + f. A lane's four words of x
// are of two neighbouring members, and its sums of eight neighbouring outputs of pairs.
template <int K, int UNROLL, int J>
__device__ inline void add_product(int (&total)[4][J][4], const int8_t* W, const uint32_t* x,
                                   uint32_t tile, uint32_t column, Lane lane) {
  constexpr uint32_t STEPS = (K + 31) / 32;
  const uint4* w = reinterpret_cast<const uint4*>(W) + tile * STEPS * 128 + lane.index;
  const uint4* of_x = reinterpret_cast<const uint4*>(x + 2 * (lane.quad * LD + column));
  of_x += lane.group;
#pragma unroll UNROLL
  for (uint32_t step = 0; step < STEPS; ++step) {
    const uint4 a[4] = {__ldg(w), __ldg(w + 32), __ldg(w + 64), __ldg(w + 96)};
#pragma unroll
    for (int k = 0; k < J / 2; ++k) {
      const uint4 v = of_x[8 * k];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        mma(total[i][2 * k], a[i], make_uint2(v.x, v.y));
        mma(total[i][2 * k + 1], a[i], make_uint2(v.z, v.w));
      }
    }
    w += 128;
    of_x += 2 * LD;
  }
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
  int total[4][J][4];
  begin_sums<K, O, DIVISOR>(total, sums, noise, leaf, tile, column, lane);
  add_product<K, (K * O > 65536) ? 4 : 2>(total, W, x, tile, column, lane);
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

// As `dots`, for a lane that has octets of both members of a pair; B: gives two words of each.
template <int K, typename Octets>
__device__ inline void dots_with(Octets B, int* sums, const uint32_t* x, Pair pair) {
  int even = 0, odd = 0;
#pragma unroll
  for (uint32_t far = 0; far < K / 8; far += 32) {
    const uint4 v = get(x, Octet{pair.lane + far}, pair.member);
    const uint2 b = B(far);
    even = __dp4a(int(v.y), int(b.y), __dp4a(int(v.x), int(b.x), even));
    odd = __dp4a(int(v.w), int(b.y), __dp4a(int(v.z), int(b.x), odd));
  }
  even = over_pair(even);
  odd = over_pair(odd);
  if (pair.lane == 0)
    *reinterpret_cast<uint2*>(sums + pair.member) = make_uint2(uint32_t(even), uint32_t(-odd));
}

template <int K>
__device__ inline void dots(int* sums, const uint32_t* x, BlockNoise noise, Leaf leaf, Pair pair) {
  const uint2* B = reinterpret_cast<const uint2*>(noise.kept + leaf.B);
  B += pair.member / 2 * (K / 8) + pair.lane;
  dots_with<K>([=](uint32_t far) { return B[far]; }, sums, x, pair);
}

template <int K>
__device__ inline void dots(int* sums, const uint32_t* x, Noise noise, uint32_t leaf, Pair pair) {
  const Bytes B = slice_bytes(noise, leaf, pair.member, 8 * pair.lane);
  const auto octet = [=](uint32_t far) { return make_uint2(B.word(2 * far), B.word(2 * far + 1)); };
  dots_with<K>(octet, sums, x, pair);
}

}  // namespace egg
