// What a row leaves for its way back: values as registers have them, [rows / 8][M][8].

namespace egg {

__device__ inline void keep_value(int8_t* to, uint32_t quad, uint32_t member, uint2 v) {
  uint32_t* at = reinterpret_cast<uint32_t*>(to) + ((quad >> 1) * M + member) * 2 + (quad & 1);
  at[0] = v.x;
  at[2] = v.y;
}

// A register of N features. 16 lanes for a member.
template <int N>
__device__ inline void keep_row(int8_t* to, const uint32_t* x, Row row) {
  for (uint32_t quad = row.lane; quad < (N + 7) / 8 * 2; quad += 16)
    reinterpret_cast<uint32_t*>(to)[((quad >> 1) * M + row.member) * 2 + (quad & 1)] =
        x[word(quad, row.member)];
}

}  // namespace egg
