"""Every number and name of a setting has its range: what lies just outside is refused by name, and the ends are not."""

import dataclasses
import math
import re

import pytest
from support.refusals import refuses

from padir import Sharding
from padir.data import Batching, LengthLimits
from padir.data.toy import ToyDeEn
from padir.decoding import Beam, CausalScore, Decoding, MinimumBayesRisk, Sampling
from padir.decoding.options import DecodingOptions
from padir.interop.exported_options import EXPORTED
from padir.models.config import ModelConfig
from padir.options import OPTIONS
from padir.refinement import Glat, Mask, MaskRange, SampledUnroll, Uniform
from padir.refinement import strategies as s
from padir.training import Averaging, Causal, Cosine, Intervals, NotFinite, Objective, Sum, TrainConfig

INF, NAN = math.inf, math.nan
COUNT, RATE = ([0, 2**31], [1]), ([-0.1, 1.1, NAN], [0.0, 1.0])
BELOW_1, FREE = ([-0.1, 1.0], [0.0]), ([-0.1, INF, NAN], [0.0])
RANGES = [
    *((ModelConfig, name, *COUNT) for name in ("width", "heads", "head_dim", "mlp")),
    (ModelConfig, "dropout_rate", *BELOW_1),
    (ModelConfig, "dtype", ["float16"], ["bfloat16"]),
    (ModelConfig, "mlp_activations", [("rleu",)], [("gelu", "linear")]),
    (ModelConfig, "length_head", ["toekn", "oracle"], ["token"]),
    (ModelConfig, "rejecter_judges", ["argmax"], ["prediction"]),
    *((cls, "rate", *RATE) for cls in (Uniform, Mask, MaskRange)),
    *((Intervals, name, *COUNT) for name in ("log", "checkpoint", "max_to_keep")),
    (Intervals, "evaluate", [-1], [0]),
    (Averaging, "kind", ["mean"], ["ema"]),
    (Averaging, "decay", *BELOW_1),
    (Averaging, "count", *COUNT),
    (Cosine, "peak", [0.0, NAN], [1e-9]),
    (Cosine, "warmup_steps", [-1], [0]),
    (Cosine, "final", *RATE),
    (TrainConfig, "num_steps", *COUNT),
    (NotFinite, "action", ["ignore"], ["skip"]),
    (NotFinite, "most_in_a_row", *COUNT),
    (Batching, "accumulation_steps", *COUNT),
    (Sharding, "model_parallel", *COUNT),
    *((cls, "label_smoothing", *BELOW_1) for cls in (Causal, Objective)),
    (Objective, "normaliser", ["words"], ["weights", "positions", "sentences"]),
    (Sum, "causal_weight", [0.0], [1e-9]),
    (Glat, "start", *RATE),
    (SampledUnroll, "temperature", [0.0], [0.1]),
    *((cls, "temperature", *FREE) for cls in (s.Padir, s.SundaeSampling, s.BlockGibbs, s.IndependentParallel)),
    (s.Padir, "top_p", [0.0, 1.1], [0.1, 1.0]),
    (s.Padir, "top_k", [-1], [0]),
    (s.Padir, "remask", ["mask"], ["previous", "start", "logits", "none"]),
    (s.Constant, "share", *RATE),
    (s.Constant, "count", [-1], [0]),
    (s.Constant, "remask", ["mask", "none"], ["previous", "start", "logits"]),
    (s.Rejecter, "threshold", [-1.0], [0.0]),
    (s.PredictionRejecter, "remask", ["mask", "none"], ["previous", "start", "logits"]),
    (s.Factor, "bound", [0.0, NAN], [0.1]),
    (s.Threshold, "tau", *RATE),
    (s.Threshold, "final_tau", [0.91], [0.0, 0.9]),
    (s.Remdm, "sigma", *RATE),
    (s.PathPlanning, "eta", *FREE),
    (s.PathPlanning, "judges", ["token"], ["written", "drawn", "random"]),
    (s.Renoise, "gamma", [0.0], [0.1]),
    (s.Renoise, "final_temperature", [-0.1, 0.1], [None, 0.0]),  # the temperature is 0
    (s.Renoise, "stop_entropy", [-0.1, INF], [None, 0.0]),
    (s.SundaeSampling, "share", [0.0, 1.1], [1.0]),
    (s.SundaeSampling, "order", ["margin"], ["uncertain"]),
    (s.BlockGibbs, "block", *COUNT),
    (s.BlockGibbs, "order", ["left"], ["margin"]),
    (Beam, "size", [0, 2**31], [1, 2**31 - 1]),
    (Beam, "alpha", *FREE),
    (Sampling, "temperature", [0.0], [0.1]),
    (Sampling, "size", *COUNT),
    (CausalScore, "length_normalization", *FREE),
    (MinimumBayesRisk, "utility", ["ter"], ["bleu"]),
    *((Decoding, name, *COUNT) for name in ("num_steps", "batch_size", "num_lengths", "num_drafts", "beam")),
    (Decoding, "prefix_beam", *COUNT),
    (Decoding, "length_min_p", *RATE),
    *((Decoding, name, [-1, 2**31], [0]) for name in ("n_best", "seed")),
    *((Decoding, name, *FREE) for name in ("length_normalization", "temperature", "length_penalty", "blank_penalty")),
    *((LengthLimits, name, [1], [2]) for name in ("max_source_tokens", "max_target_tokens")),
    (LengthLimits, "max_length_ratio", [0.5, NAN], [1.0, 2.0**31]),
    (ToyDeEn, "num_test", [0, 1_001], [1, 1_000]),
]


@pytest.mark.parametrize(
    ("cls", "name", "refused", "allowed"), RANGES, ids=lambda each: getattr(each, "__name__", each)
)
def test_ranges(cls, name, refused, allowed):
    for value in refused:
        error = refuses(cls, name, **{name: value})
        assert error.what.rpartition(".")[2] == name and repr(error.got) in repr(value)
    for value in allowed:
        cls(**{name: value})


def test_every_decoding_option_is_described_typed_and_has_a_range():
    attributes = (Decoding.__doc__ or "").partition("Attributes:")[2].partition("\n\n")[0]
    described = re.findall(r"^ {6}(\w+): ", attributes, re.MULTILINE)
    fields = [field.name for field in dataclasses.fields(Decoding)]
    assert described == [*DecodingOptions.__annotations__] == [*OPTIONS] == fields
    numbers = {name for name, option in OPTIONS.items() if option.kind in (int, float)}
    assert numbers - {name for cls, name, *_ in RANGES if cls is Decoding} == set()
    assert EXPORTED <= OPTIONS.keys()
