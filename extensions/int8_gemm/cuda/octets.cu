// Products for lanes that have octets of pairs: 64 outputs in a tile, noise on weights.

namespace egg {

// begins: [leaves of the stage][M / 2 pairs], where slices begin: x the bytes of whole words before
// them, y what a funnel shift takes.
struct BlockNoise : Noise {
  const uint2* begins = nullptr;
  BlockNoise() = default;
  __device__ inline BlockNoise(Noise noise) : Noise(noise) {}
};

template <uint32_t LEAVES>
__device__ inline void keep_begins(uint2* begins, Noise noise, Lane lane) {
  for (uint32_t i = lane.thread; i < LEAVES * (M / 2); i += THREADS) {
    const uint32_t pair = min(noise.first + i % (M / 2), noise.pairs - 1);
    const uint32_t at = uint32_t(noise.starts[i / (M / 2) * noise.pairs + pair]);
    begins[i] = make_uint2(at & ~3u, 8 * at);
  }
}

// As `slice_bytes`, of whole words from `table` on.
__device__ inline Bytes words_of(BlockNoise noise, uint32_t leaf, uint32_t member,
                                 const int8_t* table) {
  const uint2 begin = noise.begins[leaf * (M / 2) + member / 2];
  Bytes bytes;
  bytes.from = table;
  bytes.words = reinterpret_cast<const uint32_t*>(table + begin.x);
  bytes.shift = begin.y;
  return bytes;
}

// As `product`, but added to what is there: total[2 t + i][2 k + f][2 h + p] is output 64 tile +
// 8 group + 4 t + 2 i + h of W x, member column + 16 k + 4 quad + 2 p + f. A lane's four words of x
// are of two neighbouring members, and its sums of eight neighbouring outputs of pairs.
template <int K, int UNROLL, int J>
__device__ inline void add_product(int (&total)[4][J][4], const int8_t* W, const uint32_t* x,
                                   uint32_t tile, uint32_t column, Lane lane) {
  constexpr uint32_t STEPS = (K + 31) / 32;
  const uint32_t of_lane = lane.group % 4 * 8 + lane.quad;
  const uint4* w = reinterpret_cast<const uint4*>(W);
  w += (2 * tile + lane.group / 4) * STEPS * 64 + of_lane;
  const uint4* of_x = reinterpret_cast<const uint4*>(x + 2 * (lane.quad * LD + column));
  of_x += lane.group;
#pragma unroll UNROLL
  for (uint32_t step = 0; step < STEPS; ++step) {
    const uint4 a[4] = {__ldg(w), __ldg(w + 32), __ldg(w + 4), __ldg(w + 36)};
#pragma unroll
    for (int k = 0; k < J / 2; ++k) {
      const uint4 v = of_x[8 * k];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        mma(total[i][2 * k], a[i], make_uint2(v.x, v.y));
        mma(total[i][2 * k + 1], a[i], make_uint2(v.z, v.w));
      }
    }
    w += 64;
    of_x += 2 * LD;
  }
}

// As `on_sums`, of outputs 4 quad .. 4 quad + 7. Where x B times A does not wrap, the upper word of
// a product makes a shift as well.
struct Eight {
  int even[8], odd[8];
};

template <int K, int O, int DIVISOR>
__device__ inline Eight on_octet(BlockNoise noise, uint32_t leaf, const int* sums, uint32_t member,
                                 uint32_t quad) {
  constexpr int REST = SHIFT > 8 ? SHIFT - 8 : 0;
  Eight n = {};
  if (!PERTURBED) return n;
  if (RANK == 1 && SHIFT >= 8 && K <= 1048 && K % 4 == 0) {  // K 127^3 < 2^31
    const Bytes A = words_of(noise, leaf, member, noise.table + K + 4 * quad);
    const uint32_t words[2] = {A.word(0), A.word(1)};
    const uint2 of = *reinterpret_cast<const uint2*>(sums + member);
    for (int e = 0; e < 8; ++e) {
      const int a = upper_byte(words[e / 4], e % 4);
      n.even[e] = __mulhi(int(of.x), a) >> REST;
      n.odd[e] = __mulhi(int(of.y), a) >> REST;
    }
    return n;
  }
  for (int t = 0; t < 2; ++t) {
    const Two two = on_sums<K, O, DIVISOR>(noise, leaf, sums, member, quad + t);
    for (int e = 0; e < 4; ++e) {
      n.even[4 * t + e] = two.even[e];
      n.odd[4 * t + e] = two.odd[e];
    }
  }
  return n;
}

// Member of a lane's j-th octets, which are of it and the next one.
__device__ inline uint32_t member_of(uint32_t column, int j, Lane lane) {
  return column + 16 * (j / 2) + 4 * lane.quad + 2 * (j % 2);
}

// y[j]: outputs 64 tile + 8 group + 0..7 of members member_of(j) and the next. The sums begin with
// the noise.
template <int K, int O, int DIVISOR, int J>
__device__ inline void linear(uint4 (&y)[J], const int8_t* W, const uint32_t* x, const int* sums,
                              BlockNoise noise, uint32_t leaf, uint32_t tile, uint32_t column,
                              Lane lane) {
  int total[4][J][4];
  const uint32_t quad = 16 * tile + 2 * lane.group;
#pragma unroll
  for (int j = 0; j < J; ++j) {
    const Eight n = on_octet<K, O, DIVISOR>(noise, leaf, sums, member_of(column, j, lane), quad);
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      total[e / 2][j / 2 * 2][e % 2 * 2 + j % 2] = n.even[e];
      total[e / 2][j / 2 * 2 + 1][e % 2 * 2 + j % 2] = n.odd[e];
    }
  }
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

// As `dots`, for a lane that has octets of both members of a pair.
template <int K>
__device__ inline void dots(int* sums, const uint32_t* x, BlockNoise noise, uint32_t leaf,
                            Pair pair) {
  const Bytes B = words_of(noise, leaf, pair.member, noise.table + 8 * pair.lane);
  int even = 0, odd = 0;
#pragma unroll
  for (uint32_t far = 0; far < K / 8; far += 32) {
    const uint4 v = get(x, Octet{pair.lane + far}, pair.member);
    const int low = int(B.word(2 * far)), high = int(B.word(2 * far + 1));
    even = __dp4a(int(v.y), high, __dp4a(int(v.x), low, even));
    odd = __dp4a(int(v.w), high, __dp4a(int(v.z), low, odd));
  }
  even = over_pair(even);
  odd = over_pair(odd);
  if (pair.lane == 0)
    *reinterpret_cast<uint2*>(sums + pair.member) = make_uint2(uint32_t(even), uint32_t(-odd));
}

}  // namespace egg
