"""Ising models: the paper's experiments (figures 1 to 3), and its theorems checked by exact enumeration."""
