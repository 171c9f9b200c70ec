// What the unit of AMX has besides its tiles. Included inside its namespace, after avx512_isa.h and
// Tiles; tests/native/isa_amx_avx512.cpp has it with tiles in plain C++.

struct Elements : Avx512Isa {
  template <bool power, bool early>
  static inline __attribute__((always_inline)) void piece(const int32_t (*acc)[kLanes],
                                                          const LowRank& noise, int o, int m,
                                                          const Scale& by, uint32_t* out) {
    Epilogue<V512>::piece<power, early>(acc, noise, o, m, by, out);
  }

  // Inputs as they are.
  static void credit(const uint32_t* x, int words, const int8_t (*c)[kPairs], int tokens,
                     int32_t (*sum)[4][kPairs]) {
    credit_of<true>(x, words, c, tokens, sum);
  }

  static int64_t peak(int64_t rounds) {
    Tiles::open();
    Tiles::zero<0>(), Tiles::zero<1>(), Tiles::zero<2>(), Tiles::zero<3>();
    Tiles::zero<4>(), Tiles::zero<5>(), Tiles::zero<6>(), Tiles::zero<7>();
    for (int64_t i = 0; i < rounds; ++i) {
      Tiles::multiply<0, 4, 6>();
      Tiles::multiply<1, 4, 7>();
      Tiles::multiply<2, 5, 6>();
      Tiles::multiply<3, 5, 7>();
    }
    Tiles::close();
    return rounds * 4 * 16 * 16 * 64;
  }
};

#include "amx_isa.h"
using Matrix = AmxMatrix;
using Tiled = Avx512Isa;
//
#include "block.h"
//
#include "learn_isa.h"
#include "learn_products.h"
//
#include "avx512_products.h"
//
#include "x86_learn.h"
using LearnIsa = X86Learn<V512>;
using Products = Avx512Products;
//
#include "unit.h"
//
#include "x86_adam.h"
