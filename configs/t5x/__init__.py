"""Gin files for T5X's scripts; docs/t5x.md explains them."""
