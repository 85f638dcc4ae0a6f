"""Ising models: the paper's experiments (figures 1 to 3) and its theorems, checked by exact enumeration.

`Ising` is a model, `Masks` the blocks that are hidden in learning or redrawn in sampling. `learning_curves` and
`sampling_times` are the experiments, `check_all` checks the statements of sections 2.2 to 2.4 on random models, and
`padir.studies.ising.subjects` is the command `padir ising`. `decoders` has the exact laws of decoders of several
passes, `pass_sizes` the sizes of their passes, and `transformers` networks that carry out parallel chains.
docs/theory.md derives the statements and shows the results.
"""
