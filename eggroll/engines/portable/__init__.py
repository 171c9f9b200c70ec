"""The yardstick: every operation in plain MLX, slow and obvious."""
