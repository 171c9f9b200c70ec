// MLX includes it; our kernels use nothing of it.
#pragma once
namespace cooperative_groups {}
