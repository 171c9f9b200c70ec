"""The portable engine: every operation in plain MLX, slow and obvious."""
