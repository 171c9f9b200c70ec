// NumPy's memory as an MLX array.
#pragma once

#include <nanobind/nanobind.h>

#include "mlx/array.h"

namespace eggroll {

// An array over the memory of a C-contiguous int8 or int32 array of NumPy, which it keeps alive:
// what is written there later is seen by what is computed later. Where MLX's allocator has no place
// for foreign memory, it is a copy. Throws std::invalid_argument for any other array.
mlx::core::array view(const nanobind::object& given);

}  // namespace eggroll
