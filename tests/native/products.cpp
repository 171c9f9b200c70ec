// Compares AVX2's products of credit with plain sums: credit of all sizes, many of whose sums are
// just at the limit of what may be multiplied in pairs, beside values of all sizes up to +-127.
#include <immintrin.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "plan.h"

namespace eggroll::avx2 {
#include "x86.h"

struct Trial {
  std::mt19937 random{3};
  int words = 0, kind = 0;
  long pairs = 0, singles = 0, wrong = 0;

  int below(int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }
  int8_t any() { return static_cast<int8_t>(below(255) - 127); }
  int8_t extreme() { return below(2) ? any() : static_cast<int8_t>(below(2) ? 127 : -127); }

  int8_t credit() {
    int v = kind == 0   ? any()
            : kind == 1 ? (below(2) ? 32 : -32) + !below(40)
            : kind == 2 ? below(33)
                        : below(9) - 4;
    return static_cast<int8_t>(v);
  }

  void compare(const int8_t* w, const int8_t* x, const int32_t (*acc)[kLanes]) {
    for (int o = 0; o < kTile; ++o)
      for (int m = 0; m < kLanes; ++m) {
        int32_t sum = 0;
        for (int k = 0; k < 4 * words; ++k)
          sum += w[(k / 4 * kTile + o) * 4 + k % 4] * x[(k / 4 * kLanes + m) * 4 + k % 4];
        wrong += sum != acc[o][m];
      }
  }

  void run() {
    std::vector<int8_t> tile(Avx2Products::tile_bytes(words));
    std::vector<uint32_t> x(static_cast<size_t>(words) * kLanes);
    std::vector<Avx2Products::Panel> panel(Avx2Products::panel_size(words));
    int8_t *w = tile.data() + kTile * sizeof(int32_t), *bytes = reinterpret_cast<int8_t*>(x.data());
    alignas(64) int32_t acc[kTile][kLanes];
    for (int i = 0; i < words * kTile * 4; ++i) w[i] = credit();
    for (int i = 0; i < words * kLanes * 4; ++i) bytes[i] = extreme();
    Avx2Products::close_inputs(x.data(), words, panel.data());
    Avx2Products::close_tile(tile.data(), words, tile.size());
    Avx2Products::count(tile.data(), panel.data(), words, acc);
    compare(w, bytes, acc);
    int32_t sorted[2];
    std::memcpy(sorted, w + words * kTile * 4, sizeof sorted);
    pairs += sorted[0], singles += sorted[1];
    for (int i = 0; i < words * kTile * 4; ++i) w[i] = extreme();
    for (int i = 0; i < words * kLanes * 4; ++i) bytes[i] = credit();
    Avx2Products::close_credit(x.data(), words, panel.data());
    Avx2Products::send(tile.data(), panel.data(), words, acc);
    compare(w, bytes, acc);
  }
};
}  // namespace eggroll::avx2

int main() {
  eggroll::avx2::Trial trial;
  for (int i = 0; i < 400; ++i) {
    trial.words = 1 + i % 40, trial.kind = i / 40 % 4;
    trial.run();
  }
  std::printf("%ld wrong, %ld pairs, %ld single words\n", trial.wrong, trial.pairs, trial.singles);
  return trial.wrong || trial.pairs < 1000 || trial.singles < 1000;
}
