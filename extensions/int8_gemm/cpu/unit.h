// What every unit has besides its products, and the table of all of it. Included inside each
// unit's namespace, after its Isa, Matrix, LearnIsa and Products; x86_adam.h may follow.

#include "votes.h"
//
#include "learn.h"
//
#include "draws_isa.h"
#include "rules_isa.h"
#include "whitening_isa.h"

static constexpr Kernels kernels_of(const char* name, decltype(Kernels::adam) adam) {
  return {name,
          Isa::peak,
          Isa::weight_bytes,
          Isa::pack,
          block_bytes,
          block,
          vote_bytes,
          vote,
          learn_bytes,
          learn,
          adam,
          move_by_sign,
          Whitening::rows,
          Whitening::next,
          draw};
}
