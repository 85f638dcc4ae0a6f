"""T5X: checkpoints, exchange, adapter."""
