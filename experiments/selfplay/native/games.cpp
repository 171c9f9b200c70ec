// Boards side by side for games.py. Letters: B boards, A actions, F values of an observation.
#include "games.h"

#include "eggroll_world.h"

using namespace selfplay;

// Constants of a game: actions, planes, cells, longest, most legal actions.
EGGROLL_EXPORT void game_constants(int32_t game, int32_t* out) {
  with_game(game, [&]<class G>() {
    const int32_t found[] = {G::kActions, G::kPlanes, G::kCells, G::kLongest, G::kMostLegal};
    std::memcpy(out, found, sizeof found);
  });
}

// New games on `count` of the boards, rows int32 [count].
EGGROLL_EXPORT void boards_reset(int32_t game, const Positions* boards, int64_t count,
                                 const int32_t* rows) {
  with_game(game, [&]<class G>() {
    for (int64_t i = 0; i < count; ++i) boards->store(rows[i], G::begin());
  });
}

// planes int8 [B, F]; legal uint8 [B, A]; either may be NULL.
EGGROLL_EXPORT void boards_show(int32_t game, const Positions* boards, int64_t count,
                                int8_t* planes, uint8_t* legal) {
  with_game(game, [&]<class G>() {
    for (int64_t i = 0; i < count; ++i) {
      const State s = boards->load(i);
      if (planes) G::observe(s, planes + i * G::kPlanes * G::kCells);
      if (legal) show_legal<G>(s, legal + i * G::kActions);
    }
  });
}

// float32 [B], from White.
EGGROLL_EXPORT void boards_soft(int32_t game, const Positions* boards, int64_t count, float* out) {
  with_game(game, [&]<class G>() {
    for (int64_t i = 0; i < count; ++i) out[i] = G::soft(boards->load(i));
  });
}

// Applies actions int32 [B]; boards whose game is over stay. Returns -1, or the first board whose
// action is not legal, and then changes nothing.
EGGROLL_EXPORT int64_t boards_step(int32_t game, const Positions* boards, int64_t count,
                                   const int32_t* actions) {
  return with_game(game, [&]<class G>() -> int64_t {
    for (int64_t i = 0; i < count; ++i) {
      const State s = boards->load(i);
      if (!s.facts.over && !G::allows(s, actions[i])) return i;
    }
    for (int64_t i = 0; i < count; ++i) {
      State s = boards->load(i);
      if (s.facts.over) continue;
      G::apply(s, actions[i]);
      boards->store(i, s);
    }
    return -1;
  });
}
