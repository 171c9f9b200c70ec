// Memory of MLX's arrays. MLX's CPU allocator answers null where there is none.
#pragma once

#include <new>

#include "mlx/allocator.h"

namespace eggroll {

inline mlx::core::allocator::Data allocated(size_t bytes) {
  mlx::core::allocator::Data data = mlx::core::allocator::malloc(bytes);
  if (bytes && !data.buffer().ptr()) throw std::bad_alloc();
  return data;
}

}  // namespace eggroll
