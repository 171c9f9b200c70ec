"""Plans, kernels and launches that the Metal and the CUDA engine share."""
