// Search trees side by side, for search.py.
#include "tree.h"

#include <new>

#include "eggroll_world.h"

using namespace selfplay;

// NULL without memory.
EGGROLL_EXPORT AnyTrees* trees_new(int32_t game, const TreeOptions* options) try {
  return with_game(game, [&]<class G>() -> AnyTrees* { return new Trees<G>(*options); });
} catch (const std::bad_alloc&) {
  return nullptr;
}

EGGROLL_EXPORT void trees_delete(AnyTrees* trees) { delete trees; }

EGGROLL_EXPORT void trees_start(AnyTrees* trees, const Positions* boards, int32_t R,
                                const int32_t* slots, const Draws* draws, double share,
                                double shape) {
  trees->start(*boards, R, slots, *draws, share, shape);
}

EGGROLL_EXPORT int32_t trees_select(AnyTrees* trees, int32_t R, const int32_t* slots,
                                    int8_t* planes, uint8_t* legal) {
  return trees->select(R, slots, planes, legal);
}

EGGROLL_EXPORT void trees_expand(AnyTrees* trees, const float* logits, const float* values) {
  trees->expand(logits, values);
}

// A network in native code: planes int8 [m, F] -> logits float32 [m, A], values float32 [m].
using NativeNet = void (*)(const void* net, int32_t m, const int8_t* planes, float* logits,
                           float* values);

// Rows of a round, in memory of the caller.
struct Round {
  int8_t* planes;
  uint8_t* legal;
  float *logits, *values;
};

// All rounds of a search by a native network.
EGGROLL_EXPORT void trees_run(AnyTrees* trees, int32_t R, const int32_t* slots, const Round* round,
                              NativeNet evaluate, const void* net) {
  while (const int32_t m = trees->select(R, slots, round->planes, round->legal)) {
    evaluate(net, m, round->planes, round->logits, round->values);
    trees->expand(round->logits, round->values);
  }
}

EGGROLL_EXPORT void trees_finish(AnyTrees* trees, int32_t R, const int32_t* slots,
                                 const float* temperatures, const Draws* draws, uint16_t* policy,
                                 int32_t* chosen, float* values) {
  trees->finish(R, slots, temperatures, *draws, policy, chosen, values);
}

EGGROLL_EXPORT void trees_visits(const AnyTrees* trees, int32_t R, const int32_t* slots,
                                 int32_t* out) {
  trees->visits(R, slots, out);
}

EGGROLL_EXPORT void trees_advance(AnyTrees* trees, int32_t R, const int32_t* slots,
                                  const int32_t* played) {
  trees->advance(R, slots, played);
}

EGGROLL_EXPORT void trees_forget(AnyTrees* trees, int32_t R, const int32_t* slots) {
  for (int32_t r = 0; r < R; ++r) trees->forget(slots[r]);
}
