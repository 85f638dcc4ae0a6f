"""Training: losses, optimizer, checkpoints, loop."""
