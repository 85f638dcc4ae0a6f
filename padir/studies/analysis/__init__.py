"""Analysis of a refinement model, attention and refinement step by step, and an exact audit of samplers.

`neighbours` compares the attention of stuttering neighbours with the attention of other neighbours. `step_metrics` and
`outcomes` measure refinement and its `reliability` (calibration). `ExactDecoder` knows the true distributions of an
audit, and `law` gives the exact distribution of what a strategy writes with it.
`padir.studies.analysis.analyses` is the command `padir analyse`: it takes a subject from a model and a test set to
metrics, pictures and a page.
"""
