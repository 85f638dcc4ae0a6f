"""Analysis of a refinement model: attention, dependency between target positions, and refinement step by step.

`neighbours` compares the attention of stuttering neighbours with that of others; `measure_agreement` compares attention
and the model's own `dependence` with the true dependency of the built-in corpus; `steps` and `outcomes` measure
refinement and its `reliability` (calibration). `ExactDecoder` knows the truth, and `decode` runs a strategy on it.
`nats_by_step` measures the loss of references that are written in several passes. `padir.analysis.run` is the command
`padir analyse`: it takes one of the `subjects` from a model and a test set to metrics, pictures and a page.
"""

from padir.analysis.agreement import Agreement, measure_agreement, with_truth, without_truth
from padir.analysis.attention import Maps, attend
from padir.analysis.calibration import Reliability, reliability
from padir.analysis.conditionals import Dependence, dependence
from padir.analysis.oracle import ExactDecoder, decode
from padir.analysis.refinement import StepMetrics, outcomes, steps
from padir.analysis.stutter import Neighbours, neighbours
from padir.analysis.truth import Joint, joints
from padir.analysis.uncertainty import Plan, nats_by_step

__all__ = [
    "Agreement",
    "Dependence",
    "ExactDecoder",
    "Joint",
    "Maps",
    "Neighbours",
    "Plan",
    "Reliability",
    "StepMetrics",
    "attend",
    "decode",
    "dependence",
    "joints",
    "measure_agreement",
    "nats_by_step",
    "neighbours",
    "outcomes",
    "reliability",
    "steps",
    "with_truth",
    "without_truth",
]
