// The kernels of a unit, made of its primitives: the parts of all units, in the order in which they
// use each other. They have no guards: every unit includes them in its own namespace, where it says
// by `using` what it is made of:
//
//   Isa       the primitives of a block, as PortableIsa has them
//   Matrix    the products of a linear leaf: TileMatrix or AmxMatrix
//   LearnIsa  the primitives of credit that is carried back, as PortableLearn has them
//   Products  the products for votes and carried credit, as PortableProducts has them
//   Adam      the update rule, as PortableAdam has it

// clang-format off
#include "members.h"
#include "leaves.h"
#include "rows.h"
#include "credit.h"
#include "world.h"
#include "layers.h"
#include "block.h"
#include "votes.h"
#include "learn_lists.h"
#include "learn_tape.h"
#include "learn_losses.h"
#include "learn_credit.h"
#include "learn.h"
// clang-format on

// Draws numbers of a counter-based stream.
static void draw(uint64_t stream, uint64_t first, int64_t count, uint64_t room,
                 int32_t* __restrict out) {
  constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;
  const uint64_t at = stream + first * kGolden;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t z = at + static_cast<uint64_t>(i) * kGolden;  // and then SplitMix64's finalizer
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    z ^= z >> 31;
    out[i] = static_cast<int32_t>(static_cast<uint32_t>(((z >> 32) * room) >> 32));
  }
}

static constexpr Kernels kernels_of(const char* name) {
  return {name,       Isa::peak,  Isa::weight_bytes, Isa::pack,    block_bytes,     block,
          vote_bytes, vote,       back_bytes,        pack_back,    learn_bytes,     learn,
          sigmoids,   Adam::part, add_votes,         move_by_sign, Whitening::rows, Whitening::next,
          draw};
}
