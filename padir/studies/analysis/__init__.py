"""Analysis of a refinement model: attention, dependency between target positions, and refinement step by step.

`neighbours` compares the attention of stuttering neighbours with the attention of other neighbours. `measure_agreement`
compares attention and the model's own `dependence` with the true dependency of the built-in corpus. `step_metrics` and
`outcomes` measure refinement and its `reliability` (calibration). `ExactDecoder` knows the truth, and `decode` runs a
strategy on it. `nats_by_step` measures the loss of references that are written in several passes.
`padir.studies.analysis.analyses` is the command `padir analyse`: it takes a subject from a model and a test set to
metrics, pictures and a page.
"""
