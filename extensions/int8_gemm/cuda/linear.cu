// y = clip((W x + noise) // (16 floor(sqrt K))), noise = ((x B) A^T) >> SHIFT.

namespace egg {

// sums[q][member] = +-(x B)[q]: plus for the even member of a pair. 16 lanes for a member.
template <int K>
__device__ inline void dots(int* sums, const uint32_t* x, Noise noise, uint32_t leaf, Row row) {
  const int8_t* B = slice(noise, leaf, row.member);
  for (uint32_t q = 0; q < RANK; ++q) {
    int sum = 0;
    for (uint32_t quad = row.lane; quad < (K + 3) / 4; quad += 16)
      sum = __dp4a(int(x[word(quad, row.member)]), int(factor<K>(B, quad, q)), sum);
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
  product<K, J>(total, W, x, tile, column, lane);
  const uint32_t outputs = 8 * tile + lane.group;  // a quad of them
#pragma unroll
  for (int j = 0; j < J; ++j) {
    const uint32_t member = column + 8 * j + 2 * lane.quad;
    uint32_t even[4] = {0, 0, 0, 0}, odd[4] = {0, 0, 0, 0};
    if (PERTURBED && 4 * outputs < O) {
      const int8_t* A = slice(noise, leaf, member) + RANK * K;
#pragma unroll 4
      for (uint32_t q = 0; q < RANK; ++q) {
        const uint32_t a = factor<O>(A, outputs, q);
        const int plus = sums[q * M + member], minus = sums[q * M + member + 1];
        for (int e = 0; e < 4; ++e) {
          even[e] += times(plus, byte_of(a, e));
          odd[e] += times(minus, byte_of(a, e));
        }
      }
    }
    uint2 v = make_uint2(0, 0);
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int* of = total[e / 2][j] + 2 * (e % 2);
      v.x |= as_byte(divide<DIVISOR>(int(uint32_t(of[0]) + uint32_t(int(even[e]) >> SHIFT))), e);
      v.y |= as_byte(divide<DIVISOR>(int(uint32_t(of[1]) + uint32_t(int(odd[e]) >> SHIFT))), e);
    }
    y[j] = v;
  }
}

}  // namespace egg
