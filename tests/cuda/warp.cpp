// Operations of a whole warp, emulated: matrix products as the tables of the PTX ISA have mma.sync,
// and shuffles. Without sanitizers, as most of the time is spent here.

#include "mlx/backend/cuda/device/utils.cuh"

namespace emu {

struct Operands {
  uint a[4], b[2];
};
Operands operands[2][32];  // of one warp: the others wait, and twice as a lane may run ahead

int product(uint a, uint b) {
  int sum = 0;
  for (int e = 0; e < 4; ++e) sum += int(int8_t(a >> 8 * e)) * int(int8_t(b >> 8 * e));
  return sum;
}

int wrapped(int a, int b) { return int(uint(a) + uint(b)); }

// d += a b: rows 8 h + lane / 4 and columns 2 (lane % 4) + p of d are its element 2 h + p. Word
// h + H k of a holds inputs 16 k + 4 (lane % 4) + 0..3 of row 8 h + lane / 4, H = halves of rows;
// word k of b those inputs of column lane / 4.
template <int HALVES>
void mma(int* const (&d)[2 * HALVES], const uint (&a)[HALVES * HALVES], const uint (&b)[HALVES]) {
  static uint turns[32];
  const uint lane = lane_index();
  Operands(&all)[32] = operands[turns[lane]++ % 2];
  for (int i = 0; i < HALVES * HALVES; ++i) all[lane].a[i] = a[i];
  for (int i = 0; i < HALVES; ++i) all[lane].b[i] = b[i];
  exchange({TOGETHER, uint(HALVES), 0});
  for (uint h = 0; h < HALVES; ++h)
    for (uint p = 0; p < 2; ++p)
      for (uint k = 0; k < HALVES; ++k)
        for (uint quad = 0; quad < 4; ++quad)
          *d[2 * h + p] = wrapped(*d[2 * h + p], product(all[lane / 4 * 4 + quad].a[h + HALVES * k],
                                                         all[(lane % 4 * 2 + p) * 4 + quad].b[k]));
}

void m16n8k32(int& d0, int& d1, int& d2, int& d3, uint a0, uint a1, uint a2, uint a3, uint b0,
              uint b1) {
  mma<2>({&d0, &d1, &d2, &d3}, {a0, a1, a2, a3}, {b0, b1});
}

void m8n8k16(int& d0, int& d1, uint a0, uint b0) { mma<1>({&d0, &d1}, {a0}, {b0}); }

uint shuffle(uint v, uint lane) {
  static uint values[2][32], turns[32];
  const uint mine = lane_index();
  uint(&all)[32] = values[turns[mine]++ % 2];
  all[mine] = v;
  exchange({TOGETHER, 3, 0});
  return all[lane % 32];
}

}  // namespace emu
