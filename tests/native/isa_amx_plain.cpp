// The unit of AMX with tiles in plain C++, and plain C++ in the place of AVX-512: the same layouts,
// tails and weaving, wherever the tests run. Its noise is never in 16 bits, as isa_amx_avx512.cpp
// has it.
#include "plan.h"

namespace eggroll::amx_plain {
#include "amx_plain_tiles.h"
#include "portable.h"

struct Elements : PortableIsa {
  // Four outputs from o on and 16 lanes from m on, as Epilogue has them.
  template <Way way, Noisy kind>
  static void piece(const int32_t (*acc)[kLanes], const LowRank& noise, int o, int m,
                    const Scale& by, uint32_t* out) {
    const bool high = by.power && by.shift >= 8;
    if (way.power != by.power || way.early != by.early || way.high != high ||
        kind != kind_of(noise))
      __builtin_trap();
    for (int p = 0; p < kPairs; ++p) {
      out[p] = 0;
      for (int i = 0; i < 4; ++i) {
        int32_t v = wrapping_sum(acc[i][m + p], noise_of(noise, (o + i) * kPairs + p, m + p));
        v = way.power ? clip(v >> by.shift)
                      : divide(v >> 4, by.divisor.half, by.divisor.reciprocal);
        out[p] |= (static_cast<uint32_t>(v) & 255u) << 8 * i;
      }
    }
  }

  static void diagonal(const int32_t (*sums)[kPairs], int32_t* out) {
    for (int m = 0; m < kPairs; ++m) out[m] = sums[m][m];
  }

  static int32_t noise_of(const LowRank& noise, int at, int lane) {
    uint32_t sum = 0;
    for (int j = 0; j < noise.rank; ++j)
      sum += static_cast<uint32_t>(noise.xb[j][lane]) *
             static_cast<uint32_t>(noise.a[static_cast<size_t>(j) * noise.stride + at]);
    sum = noise.rank ? static_cast<uint32_t>(static_cast<int32_t>(sum) >> noise.shift) : 0;
    if (!noise.node) return static_cast<int32_t>(sum);
    uint32_t n = static_cast<uint32_t>(noise.node[at]);
    n = (n ^ noise.minus[lane]) - noise.minus[lane];
    return static_cast<int32_t>(lane < kPairs ? sum + n : sum - n);
  }
};

using Isa = AmxIsa<Tiles, Elements>;
using Matrix = AmxMatrix<Isa>;
using LearnIsa = PortableLearn;
using Products = AmxProducts<Tiles, Isa, PortableProducts<PortableIsa>>;
using Adam = PortableAdam;

#include "unit.h"
extern const Kernels kernels = kernels_of("amx_plain");

bool tiles_open() { return Tiles::own().open; }
void take_tiles() { Tiles::own().open = false; }
}  // namespace eggroll::amx_plain
