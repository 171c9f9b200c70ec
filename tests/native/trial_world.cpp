// The worlds of test_native_worlds.py, and what no world is.
#include "trial_world.h"

EGGROLL_WORLD(narrow) = trial::world<3, 2, int8_t>;
EGGROLL_WORLD(wide) = trial::world<5, 3, int32_t>;
EGGROLL_WORLD(tall) = trial::world<17, 33, int8_t>;
EGGROLL_WORLD(old) = {0,           3, 2, 8, trial::begin, trial::observe<3>, trial::act<2, int8_t>,
                      trial::value};
EGGROLL_WORLD(vast) = {
    EGGROLL_WORLD_ABI,     3,           2, 0x7fffffff, trial::begin, trial::observe<3>,
    trial::act<2, int8_t>, trial::value};
EGGROLL_WORLD(empty) = {EGGROLL_WORLD_ABI,     0,           2, 8, trial::begin, trial::observe<3>,
                        trial::act<2, int8_t>, trial::value};
EGGROLL_WORLD(silent) = {EGGROLL_WORLD_ABI,     3,           2, 8, nullptr, trial::observe<3>,
                         trial::act<2, int8_t>, trial::value};
EGGROLL_EXPORT const int32_t answer;
const int32_t answer = 42;
