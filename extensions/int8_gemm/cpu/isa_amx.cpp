// AMX: products of signed bytes on matrix tiles (tdpbssd), of members, of votes and of credit that
// is carried back, and AVX512-VNNI for what is done element by element.
#include <immintrin.h>

#include "plan.h"

namespace eggroll::amx {
#include "avx512.h"

// The matrix tiles of AMX: eight registers of 16 rows of 64 bytes. tests/native/amx_plain_tiles.h
// is the same in plain C++.
//
// Own assembly, as gcc's _tile_loadd does not say that it reads memory: stores might move past it.
// The clobbers also keep the work that is woven between products where it was written.
struct Tiles {
  // Of this thread, until it is closed.
  static void open() {
    struct alignas(64) {
      uint8_t palette = 1, start = 0, reserved[14] = {};
      uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const shape;
    asm volatile("ldtilecfg %0" : : "m"(shape));
  }
  // The same, whatever has been done with them since.
  static void open_again() { open(); }
  static void close() { asm volatile("tilerelease" : : : "memory"); }

  template <int tile>
  static inline __attribute__((always_inline)) void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(tile) : "memory");
  }
  // 16 rows that lie `stride` bytes apart.
  template <int tile>
  static inline __attribute__((always_inline)) void load(const void* from, long stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(tile) : "memory");
  }
  // sums[m][n] += over k: a[m][4 k + i] b[k][4 n + i], i = 0..3.
  template <int sums, int a, int b>
  static inline __attribute__((always_inline)) void multiply() {
    asm volatile("tdpbssd %%tmm%c0, %%tmm%c1, %%tmm%c2" : : "i"(b), "i"(a), "i"(sums) : "memory");
  }
  template <int tile>
  static inline __attribute__((always_inline)) void store(void* to, long stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(tile) : "memory");
  }
};

using Isa = AmxIsa<Tiles, Avx512Signed>;
using Matrix = AmxMatrix<Isa>;
using LearnIsa = X86Learn<V512>;
using Products = AmxProducts<Tiles, Isa, Avx512Products>;
using Adam = X86Adam<V512>;

#include "unit.h"
extern const Kernels kernels = kernels_of("amx");
}  // namespace eggroll::amx
