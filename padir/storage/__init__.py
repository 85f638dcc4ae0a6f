"""What padir reads and writes on disk."""
