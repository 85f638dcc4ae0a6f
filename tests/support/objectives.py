"""The objective that each file in configs/objective stands for."""

from padir.refinement.corruption import Cmlm, Mask, RandomVisible, UniformRate
from padir.refinement.strategies import EasyFirst, MaskPredict
from padir.refinement.transitions import Glat, Lifted, SampledUnroll, Smart
from padir.training.objective import Objective

EXPECTED = {
    "padir": Objective(),
    "one_stage": Objective(stage_weights=("all",)),
    "cmlm": Objective(Cmlm(), Lifted(MaskPredict()), ("masked",)),
    "mdlm": Objective(Cmlm(), Lifted(MaskPredict()), ("inverse",)),
    "rdm": Objective(Cmlm(), Lifted(MaskPredict()), ("falling",)),
    "smart": Objective(Cmlm(), Smart(), ("none", "all")),
    "sundae": Objective(UniformRate(), SampledUnroll(), ("all", "all")),
    "disco": Objective(Mask(0.0), Lifted(EasyFirst()), ("all",), RandomVisible()),
    "glat": Objective(Mask(1.0), Glat(), ("none", "noised")),
    "rejecter": Objective(),
}
