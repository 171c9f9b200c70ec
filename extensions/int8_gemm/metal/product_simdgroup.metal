// Integer products on the 8 x 8 half matrices that every Apple GPU has.
//
// int8 values are exact in half and their products in float. A float holds sums below 2^24, that is
// 1040 terms; after 1024 they move to int32.

namespace egg {

EGG_FUNCTION void set(thread simdgroup_half8x8& matrix, int8_t first, int8_t second) {
  thread half2& mine = reinterpret_cast<thread half2&>(matrix.thread_elements());
  mine.x = half(first);
  mine.y = half(second);
}

EGG_FUNCTION void add_to(thread int2& total, thread simdgroup_float8x8& sums) {
  const thread float2& mine = reinterpret_cast<thread float2&>(sums.thread_elements());
  total.x = int(uint(total.x) + uint(int(mine.x)));
  total.y = int(uint(total.y) + uint(int(mine.y)));
}

// total[i][j]: outputs 8 (TILES tile + i) + row of W x, members 8 j + column and the next.
//
// W is packed for lanes: [outputs / 8][inputs / 32][lane][4 steps][2], zeros beyond O and K. So
// what x holds beyond K does not matter.
template <int K, int TILES, typename Register>
EGG_FUNCTION void product(thread int2 (&total)[TILES][M / 8], const device int8_t* W, Register x,
                          uint tile, Lane lane) {
  const uint blocks = (K + 31) / 32;
  EGG_EACH (i, TILES)
    EGG_EACH (j, M / 8) total[i][j].x = total[i][j].y = 0;
  for (uint from = 0; from < blocks; from += 32) {
    simdgroup_float8x8 sums[TILES][M / 8];
    EGG_EACH (i, TILES)
      EGG_EACH (j, M / 8) sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint block = from; block < min(from + 32, blocks); ++block) {
      char4 w[TILES][2];
      EGG_EACH (i, TILES) {
        const uint at = ((tile * TILES + i) * blocks + block) * 32 + lane.index;
        const device char4* mine = reinterpret_cast<const device char4*>(W) + 2 * at;
        w[i][0] = mine[0];
        w[i][1] = mine[1];
      }
      EGG_EACH (step, 4) {
        simdgroup_half8x8 left[TILES], right;
        EGG_EACH (i, TILES) {
          const char4 four = w[i][step / 2];
          set(left[i], step & 1 ? four.z : four.x, step & 1 ? four.w : four.y);
        }
        EGG_EACH (j, M / 8) {
          const char2 v = get(x, block * 32 + step * 8 + lane.row, 8 * j + lane.column);
          set(right, v.x, v.y);
          EGG_EACH (i, TILES) simdgroup_multiply_accumulate(sums[i][j], left[i], right, sums[i][j]);
        }
      }
    }
    EGG_EACH (i, TILES)
      EGG_EACH (j, M / 8) add_to(total[i][j], sums[i][j]);
  }
}

}  // namespace egg
