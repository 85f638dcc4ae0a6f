"""padir's models under T5X: names for the gin files of `t5x.train`, `t5x.eval` and `t5x.infer` (docs/t5x.md).

`RefinementModel` is a T5X BaseTransformerModel over padir's model, objective and decoder, with
`RefinementFeatureConverter` from a seqio Task's features to the model's. `task`, `axis_rules`, `factor_rules`,
`learning_rate` and `summarize` fill the slots of T5X's own configuration. The adapter computes nothing itself.

Importing it needs T5X, which is on no package index; everything else in padir works without T5X, including its
checkpoints.
"""

try:
    import t5x  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"padir.interop.t5x.adapter needs T5X ({error}): docs/t5x.md says how to install it; `padir t5x` reads and"
        " writes its checkpoints without it"
    ) from error

from padir.interop.t5x.adapter.features import RefinementFeatureConverter
from padir.interop.t5x.adapter.refinement_model import RefinementModel
from padir.interop.t5x.adapter.setup import axis_rules, factor_rules, learning_rate, summarize, task

__all__ = [
    "RefinementFeatureConverter",
    "RefinementModel",
    "axis_rules",
    "factor_rules",
    "learning_rate",
    "summarize",
    "task",
]
