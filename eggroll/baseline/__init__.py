"""The same network in float, its gradients and AdamW, for comparison."""
