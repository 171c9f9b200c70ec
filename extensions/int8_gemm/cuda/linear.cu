// y = clip((W x + noise) // (16 floor(sqrt K))).

namespace egg {

// sums[q][member] = +-(x B)[q]: plus for the even member of a pair. 16 lanes for a member.
template <int K>
__device__ inline void dots(int* sums, const uint32_t* x, Noise noise, uint32_t leaf, Row row) {
  const uint32_t begin = begin_of(row.lane);
  const Bytes B = slice_bytes(noise, leaf, row.member, 4 * begin);
  for (uint32_t q = 0; q < RANK; ++q) {
    int sum = 0;
    for (uint32_t far = 0; far < (K + 3) / 4; far += 16) {
      const uint32_t quad = row.lane + far;
      if (K % 64 == 0 || quad < (K + 3) / 4)
        sum = __dp4a(int(x[word(quad, row.member)]), int(factor<K>(B, quad, q, begin)), sum);
    }
    sum = over_row(sum);
    if (row.lane == 0) sums[q * M + row.member] = row.odd ? -sum : sum;
  }
}

// y[j]: outputs 32 tile + 4 group + 0..3 of members column + 8 j + 2 quad and the next.
template <int K, int O, int DIVISOR, int J>
__device__ inline void linear(uint2 (&y)[J], const int8_t* W, const uint32_t* x, const int* sums,
                              Noise noise, uint32_t leaf, uint32_t tile, uint32_t column,
                              Lane lane) {
  int total[2][J][4];
  product<K, O, J>(total, W, x, tile, column, lane);
  const uint32_t outputs = 8 * tile + lane.group;  // a quad of them
#pragma unroll
  for (int j = 0; j < J; ++j) {
    const uint32_t member = column + 8 * j + 2 * lane.quad;
    Two n = {{0, 0, 0, 0}, {0, 0, 0, 0}};
    if (PERTURBED && (O % 32 == 0 || 4 * outputs < O))
      n = on_sums<K, O, DIVISOR>(noise, leaf, sums, member, outputs);
    int even[4], odd[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int* of = total[e / 2][j] + 2 * (e % 2);
      even[e] = int(uint32_t(of[0]) + uint32_t(n.even[e]));
      odd[e] = int(uint32_t(of[1]) + uint32_t(n.odd[e]));
    }
    y[j] = make_uint2(quotients<DIVISOR>(even), quotients<DIVISOR>(odd));
  }
}

}  // namespace egg
