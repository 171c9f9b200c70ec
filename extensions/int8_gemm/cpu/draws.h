// Words of the counter-based generator, as eggroll/rng.py defines them.
#pragma once

#include <cstdint>
#include <vector>

#include "mlx/array.h"

namespace eggroll {

// int32 of this shape, its rows dealt to the streams in equal shares. Element i of a stream is
// floor(room x / 2^32), where x is the upper half of the stream's word at position first + i: a
// number below the room, or x itself with room 2^32. A stream of room 0 has zeros. Few numbers are
// drawn on one thread. Throws std::invalid_argument for a room beyond 2^32, or a shape that does
// not fit the streams.
mlx::core::array draws(const std::vector<uint64_t>& streams, const std::vector<uint64_t>& rooms,
                       uint64_t first, const std::vector<int>& shape, int threads);

}  // namespace eggroll
