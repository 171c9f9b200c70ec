// Z = sum_i left_i right_i^T of matrices: int32 that wrap.
//
// A threadgroup of four simdgroups makes 64 x 64 votes of one leaf from one share of the terms.
// Terms are a struct for which left_of and right_of are declared.

namespace egg {

constant constexpr uint SIDE = 64, DEPTH = 32, THREADS = 128;
constant constexpr uint LEFT = DEPTH + 4, RIGHT = SIDE + 4;  // bytes between rows
constant constexpr uint EXACT_TERMS = 1024;                  // 127 * 127 * 1024 < 2^24

// left[o][term], right[term][k] of terms from .. from + DEPTH - 1; zeros past an edge.
template <typename Shared, typename Terms>
EGG_FUNCTION void stage(Shared left, Shared right, Tile tile, Terms terms, uint from, uint end,
                        uint thread_index) {
  for (uint at = thread_index; at < SIDE * DEPTH; at += THREADS) {
    const uint i = at / SIDE, c = at % SIDE, term = from + i;
    int a = 0, b = 0;
    if (term < end) {
      if (tile.row + c < tile.O) a = left_of(terms, tile, tile.row + c, term);
      if (tile.column + c < tile.K) b = right_of(terms, tile, tile.column + c, term);
    }
    left[c * LEFT + i] = int8_t(a);
    right[i * RIGHT + c] = int8_t(b);
  }
}

EGG_FUNCTION void set(thread simdgroup_half8x8& matrix, int8_t first, int8_t second) {
  thread half2& mine = reinterpret_cast<thread half2&>(matrix.thread_elements());
  mine.x = half(first);
  mine.y = half(second);
}

// Adds the products of DEPTH staged terms to this simdgroup's 32 x 32 votes.
template <typename Shared>
EGG_FUNCTION void accumulate(thread simdgroup_float8x8 (&sums)[4][4], Shared left, Shared right,
                             uint row, uint column, uint simdgroup) {
  left += (simdgroup / 2 * 32 + row) * LEFT + column;
  right += row * RIGHT + simdgroup % 2 * 32 + column;
  for (uint step = 0; step < DEPTH; step += 8) {
    simdgroup_half8x8 a[4], b;
    EGG_EACH (i, 4) set(a[i], left[8 * i * LEFT + step], left[8 * i * LEFT + step + 1]);
    EGG_EACH (j, 4) {
      set(b, right[step * RIGHT + 8 * j], right[step * RIGHT + 8 * j + 1]);
      EGG_EACH (i, 4) simdgroup_multiply_accumulate(sums[i][j], a[i], b, sums[i][j]);
    }
  }
}

EGG_FUNCTION void drain(thread int2 (&total)[4][4], thread simdgroup_float8x8 (&sums)[4][4]) {
  EGG_EACH (i, 4)
    EGG_EACH (j, 4) {
      const thread float2& mine = reinterpret_cast<thread float2&>(sums[i][j].thread_elements());
      total[i][j].x = int(uint(total[i][j].x) + uint(int(mine.x)));
      total[i][j].y = int(uint(total[i][j].y) + uint(int(mine.y)));
      sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
}

EGG_FUNCTION void put_votes(device int32_t* Z, thread int2 (&total)[4][4], Tile tile, uint row,
                            uint column, uint simdgroup) {
  EGG_EACH (i, 4)
    EGG_EACH (j, 4) {
      const uint o = tile.row + simdgroup / 2 * 32 + 8 * i + row;
      const uint k = tile.column + simdgroup % 2 * 32 + 8 * j + column;
      if (o < tile.O && k < tile.K) Z[tile.offset + o * tile.K + k] = total[i][j].x;
      if (o < tile.O && k + 1 < tile.K) Z[tile.offset + o * tile.K + k + 1] = total[i][j].y;
    }
}

// The votes of one tile from terms begin .. end - 1.
template <typename Shared, typename Terms>
EGG_FUNCTION void matrix_votes(device int32_t* Z, Shared left, Shared right, Tile tile, Terms terms,
                               uint begin, uint end, uint lane, uint simdgroup) {
  const uint row = ((lane >> 2) & 4) + ((lane >> 1) & 3);
  const uint column = ((lane >> 1) & 4) + (lane & 1) * 2;
  int2 total[4][4];
  simdgroup_float8x8 sums[4][4];
  EGG_EACH (i, 4)
    EGG_EACH (j, 4) {
      total[i][j].x = total[i][j].y = 0;
      sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  uint held = 0;
  for (uint from = begin; from < end; from += DEPTH) {
    stage(left, right, tile, terms, from, end, simdgroup * 32 + lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    accumulate(sums, left, right, row, column, simdgroup);
    held += DEPTH;
    if (held == EXACT_TERMS) {
      drain(total, sums);
      held = 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  drain(total, sums);
  put_votes(Z, total, tile, row, column, simdgroup);
}

}  // namespace egg
