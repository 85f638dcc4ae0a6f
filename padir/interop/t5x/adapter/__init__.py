"""padir's models under T5X: what `t5x.train`, `t5x.eval` and `t5x.infer` need to run them, with no maths of its own.

    models     RefinementModel, a T5X BaseTransformerModel over padir's model, objective and decoder
    features   RefinementFeatureConverter, from a seqio Task's features to the model's
    setup      what gin files name: the Task, the axis rules, the learning rate, padir.json

docs/t5x.md says how to use it. T5X is not on a package index; padir does everything else without it, reading and
writing its checkpoints included.
"""

try:
    import t5x  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"padir.interop.t5x.adapter needs T5X ({error}): docs/t5x.md says how to install it; `padir t5x` reads and"
        " writes its checkpoints without it"
    ) from error
