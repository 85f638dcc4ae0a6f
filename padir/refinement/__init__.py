"""The canvas, and everything that acts on it."""
