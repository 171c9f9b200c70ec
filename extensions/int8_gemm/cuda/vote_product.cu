// Z = sum_i left_i right_i^T of matrices: int32 that wrap.
//
// A block of four warps makes 64 x 64 votes of one leaf from one share of the terms. Terms are a
// struct for which left_of and right_of are declared. The constant THREADS comes first in the
// source.

namespace egg {

constexpr uint32_t SIDE = 64, DEPTH = 64;
constexpr uint32_t LINE = SIDE + 8;  // words between quads of terms, so that these differ in banks

// left[quad][o], right[quad][k] of terms from .. from + DEPTH - 1, four terms a word; zeros past an
// edge.
template <typename Terms>
__device__ inline void stage(uint32_t* left, uint32_t* right, Tile tile, Terms terms, uint32_t from,
                             uint32_t end, uint32_t thread) {
  for (uint32_t at = thread; at < SIDE * DEPTH / 4; at += THREADS) {
    const uint32_t quad = at / SIDE, c = at % SIDE;
    uint32_t a = 0, b = 0;
    for (uint32_t e = 0; e < 4; ++e) {
      const uint32_t term = from + 4 * quad + e;
      if (term >= end) continue;
      if (tile.row + c < tile.O) a |= as_byte(left_of(terms, tile, tile.row + c, term), e);
      if (tile.column + c < tile.K) b |= as_byte(right_of(terms, tile, tile.column + c, term), e);
    }
    left[quad * LINE + c] = a;
    right[quad * LINE + c] = b;
  }
}

// Adds the products of DEPTH staged terms to this warp's 32 x 32 votes.
__device__ inline void accumulate(int (&total)[2][4][4], const uint32_t* left,
                                  const uint32_t* right, Lane lane) {
  left += lane.quad * LINE + lane.warp / 2 * 32 + lane.group;
  right += lane.quad * LINE + lane.warp % 2 * 32 + lane.group;
#pragma unroll
  for (uint32_t step = 0; step < DEPTH / 4; step += 8) {
    const uint32_t *low = left + step * LINE, *high = low + 4 * LINE;
    const uint4 first = make_uint4(low[0], low[8], high[0], high[8]);
    const uint4 second = make_uint4(low[16], low[24], high[16], high[24]);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t* b = right + step * LINE + 8 * j;
      const uint2 v = make_uint2(b[0], b[4 * LINE]);
      mma(total[0][j], first, v);
      mma(total[1][j], second, v);
    }
  }
}

__device__ inline void put_votes(int32_t* Z, const int (&total)[2][4][4], Tile tile, Lane lane) {
#pragma unroll
  for (uint32_t i = 0; i < 2; ++i)
#pragma unroll
    for (uint32_t j = 0; j < 4; ++j)
#pragma unroll
      for (uint32_t r = 0; r < 4; ++r) {
        const uint32_t o = tile.row + lane.warp / 2 * 32 + 16 * i + 8 * (r / 2) + lane.group;
        const uint32_t k = tile.column + lane.warp % 2 * 32 + 8 * j + 2 * lane.quad + r % 2;
        if (o < tile.O && k < tile.K) Z[tile.offset + o * tile.K + k] = total[i][j][r];
      }
}

// The votes of one tile from terms begin .. end - 1.
template <typename Terms>
__device__ inline void matrix_votes(int32_t* Z, uint32_t* left, uint32_t* right, Tile tile,
                                    Terms terms, uint32_t begin, uint32_t end, Lane lane) {
  int total[2][4][4] = {};
  for (uint32_t from = begin; from < end; from += DEPTH) {
    stage(left, right, tile, terms, from, end, lane.thread);
    __syncthreads();
    accumulate(total, left, right, lane);
    __syncthreads();
  }
  put_votes(Z, total, tile, lane);
}

}  // namespace egg
