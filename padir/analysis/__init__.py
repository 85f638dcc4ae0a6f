"""Analysis of a refinement model: attention, dependency between target positions, and refinement step by step.

`neighbours` compares the attention of stuttering neighbours with that of others; `measure_agreement` compares attention
and the model's own `dependence` with the true dependency of the built-in corpus; `steps` and `outcomes` measure
refinement and its `reliability` (calibration). `ExactDecoder` knows the truth, and `decode` runs a strategy on it.
`uncertainties` tells how uncertain hidden tokens are by the share of those shown. `padir.analysis.run` is the command
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
from padir.analysis.uncertainty import uncertainties

__all__ = [
    "Agreement",
    "Dependence",
    "ExactDecoder",
    "Joint",
    "Maps",
    "Neighbours",
    "Reliability",
    "StepMetrics",
    "attend",
    "decode",
    "dependence",
    "joints",
    "measure_agreement",
    "neighbours",
    "outcomes",
    "reliability",
    "steps",
    "uncertainties",
    "with_truth",
    "without_truth",
]
