"""Studies with padir: the paper's theory on Ising models, and analyses of trained models."""
