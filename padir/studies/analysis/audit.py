"""Errors of decoding strategies that run on exact probabilities, so that the strategy alone causes them.

There are two families of targets, n distributions each, over sentences of six tokens with two choices at a position:

- wordings: five right wordings. No right wording consists of the likeliest token of every position.
- spin glasses: Ising models of random couplings and weak fields, with several modes. Every sentence is right.

The outputs of a target are R draws with an exact decoder (`padir.studies.analysis.truth`), counted by right answer. Let
w_k be the probability of a right answer, c_k its count, and q_k = c_k / R:

- not right: share of the R outputs that are no right answer.
- total variation: (sum over k of |q_k - w_k| + share of outputs that are no right answer) / 2. It is exact for a
  strategy that always gives the same output. Otherwise the estimate from R draws is biased upward; the row `DRAWS`, of
  draws from the truth itself, has about the largest bias.
- divergence: KL from the truth to the outputs in nats, sum over k of w_k log(w_k / q_k). To make it finite, q_k is (c_k
  + 1/2) / (R + (K + 1) / 2) here, with one further cell for outputs that are no right answer. If a strategy never gives
  some right answer, the true divergence is infinite, and this value is only a lower bound.

Each error is a mean over the n targets of a family, with half the width of its 95 % interval over targets.
"""

from __future__ import annotations

import dataclasses
import math
import pkgutil
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, Int

from padir.errors import PadirError
from padir.refinement import Corruption, Mask, Strategy, Uniform, parse_strategy
from padir.reporting.page import Section, cell
from padir.studies.analysis import plotting
from padir.studies.analysis.study import Findings, Row, Tell
from padir.studies.analysis.truth import FIRST, ExactDecoder, Joint, decode
from padir.studies.ising.spin_models import Ising, distribution, spins

CANVASES: dict[str, Corruption] = {"mask": Mask(1.0), "uniform": Uniform(1.0)}

# Every strategy with its own defaults, variants as published, and draws by those whose default is the argmax.
STRATEGIES = (
    "padir",
    "padir:temperature=1.0",
    "mask_predict",
    "constant",
    "rewrite_all",
    "rewrite_all:share=1.0,schedule=linear",
    "threshold",
    "entropy_bound",
    "factor",
    "frechet",
    "easy_first",
    "rejecter",
    "prediction_rejecter",
    "p2",
    "p2:judges=drawn",
    "p2:judges=drawn,temperature=1.0",
    "remdm:sigma=0.0",
    "remdm",
    "renoise",
    "renoise:temperature=1.0",
    "sundae:temperature=0.0,order=uncertain",
    "sundae:temperature=1.0",
    "independent_parallel",
    "block_gibbs",
    "block_gibbs:block=99",
)
DRAWS = "draws from the truth"

LENGTH = 6
_WORDINGS = 5


@dataclasses.dataclass(frozen=True)
class Targets:
    """Known distributions over sentences of one length.

    Attributes:
      families: the name of each distribution's family.
      joints: the distributions.
      pieces: number of regular pieces, V'.
      draws: R, number of outputs drawn for each distribution.
    """

    families: Sequence[str]
    joints: Sequence[Joint]
    pieces: int
    draws: int

    @classmethod
    def of(cls, each: int, draws: int, seed: int) -> Targets:
        """Makes `each` targets of both families."""
        rng = np.random.default_rng(seed)
        found = [wordings(rng) for _ in range(each)] + [spin_glass(rng) for _ in range(each)]
        return cls(["wordings"] * each + ["spin glasses"] * each, found, 2, draws)

    def steps(self) -> list[int]:
        """The numbers of passes that are tried: 1, 2, 4, ... and the length with EOS, L."""
        length = self.joints[0].tokens_KL.shape[1]
        return [*(1 << n for n in range(length.bit_length()) if 1 << n <= length), length + 1]


def wordings(rng: np.random.Generator) -> Joint:
    """Five random wordings; the likeliest token of every position, together, are none of them."""
    while True:
        tokens_KL = spins(rng.choice(1 << LENGTH, _WORDINGS, replace=False), LENGTH) > 0
        prob_K = rng.dirichlet(np.full(_WORDINGS, 5.0))
        likeliest_L = prob_K @ tokens_KL > 0.5
        if not (tokens_KL == likeliest_L).all(-1).any():
            return Joint(tokens_KL.astype(int), prob_K)


def spin_glass(rng: np.random.Generator) -> Joint:
    """An Ising model with couplings from N(0, 1) and fields from N(0, 0.1²)."""
    half_NN = np.triu(rng.normal(size=(LENGTH, LENGTH)), 1)
    model = Ising(half_NN + half_NN.T, 0.1 * rng.normal(size=LENGTH))
    tokens_SN = spins(np.arange(1 << LENGTH), LENGTH) > 0
    return Joint(tokens_SN.astype(int), distribution(model))


class Errors(NamedTuple):
    """The errors of each target that this module's docstring defines."""

    not_right: Float[np.ndarray, " G"]
    tv: Float[np.ndarray, " G"]
    kl: Float[np.ndarray, " G"]


def errors(counts: Sequence[np.ndarray], truth: Sequence[Joint], draws: int) -> Errors:
    """Errors of counts of right answers among `draws` outputs of every target; targets may have different K.

    >>> joint = Joint(np.array([[7, 8], [8, 7]]), np.array([0.5, 0.5]))
    >>> [each.tolist() for each in errors([np.array([50, 0])], [joint], 100)[:2]]
    [[0.5], [0.5]]
    """
    found = []
    for count_K, joint in zip(counts, truth, strict=True):
        rest = 1 - count_K.sum() / draws
        tv = (np.abs(count_K / draws - joint.prob_K).sum() + rest) / 2
        smooth_K = (count_K + 0.5) / (draws + (len(count_K) + 1) / 2)
        found.append((rest, tv, (joint.prob_K * np.log(joint.prob_K / smooth_K)).sum()))
    return Errors(*np.array(found).T)


def suits(strategy: Strategy, canvas: str) -> bool:
    """True if a strategy can start from this kind of canvas, with a decoder that knows which positions are masked."""
    unmet = {"pieces"} if canvas == "mask" else {"mask", "decontextualised"}
    judged = "prediction" if canvas == "mask" else "token"  # the exact decoder has no other rejecter head
    return not unmet & getattr(strategy, "needs", frozenset()) and getattr(strategy, "head_judges", judged) == judged


def errors_of(targets: Targets, strategy: Strategy, canvas: str, steps: int, seed: int) -> tuple[Errors, np.ndarray]:
    """(errors, mean number of passes) of a strategy at each target, with the exact decoder."""
    oracle = ExactDecoder.of(targets.joints, targets.pieces)
    key = jax.random.key(seed)
    corruption = CANVASES[canvas]
    tokens_GRL, passes_GR = decode(key, oracle, steps, strategy=strategy, corruption=corruption, draws=targets.draws)
    counts = []
    for tokens_RL, joint in zip(tokens_GRL, targets.joints, strict=True):
        _, index_KL = np.unique(joint.tokens_KL, return_inverse=True)
        counts.append(_count(tokens_RL, FIRST + index_KL.reshape(joint.tokens_KL.shape)))
    return errors(counts, targets.joints, targets.draws), passes_GR.mean(-1)


def errors_of_draws(targets: Targets, seed: int) -> Errors:
    """Errors of draws from the truth itself, as many as the outputs of a strategy."""
    rng = np.random.default_rng(seed)
    counts = [rng.multinomial(targets.draws, joint.prob_K) for joint in targets.joints]
    return errors(counts, targets.joints, targets.draws)


def _count(tokens_RL: Int[np.ndarray, "R L"], answer_KL: Int[np.ndarray, "K L"]) -> Int[np.ndarray, " K"]:
    """Number of outputs that are each right answer."""
    return (tokens_RL[:, None] == answer_KL).all(-1).sum(0)


def strategies_of(own: Sequence[str] = (), names: Sequence[str] | None = None) -> Iterator[tuple[str, Strategy, str]]:
    """(name, strategy, canvas) of every audit: own strategies and the named ones (else `STRATEGIES`).

    Args:
      own: strategies of the user, each as MODULE:NAME, a class or an instance.

    Raises:
      PadirError: a name is unknown, or is no strategy; this is noticed before the first audit.
    """
    made = {name: _own(name) for name in own}
    made |= {name: parse_strategy(name) for name in (STRATEGIES if names is None else names)}
    return ((name, one, canvas) for name, one in made.items() for canvas in CANVASES if suits(one, canvas))


def _own(name: str) -> Strategy:
    try:
        found = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = "write MODULE:NAME, and set PYTHONPATH to the folder of its module"
        raise PadirError(f"no strategy {name} ({error})", remedy=remedy) from None
    try:
        strategy = found() if isinstance(found, type) else found
    except TypeError as error:
        raise PadirError(
            f"no strategy {name} ({error})", remedy="name an instance, or give all fields defaults"
        ) from None
    if not isinstance(strategy, Strategy):
        raise PadirError(name, "a strategy, with init, step and stop", type(strategy).__name__)
    return strategy


ERRORS = ("not_right", "tv", "kl")
COLUMNS = ("targets", "canvas", "strategy", "steps", "passes", "not_right", "not_right_±", "tv", "tv_±", "kl", "kl_±")


def analyse(own: Sequence[str], names: Sequence[str] | None, each: int, draws: int, seed: int, tell: Tell) -> Findings:
    """Measures own and published strategies with exact decoders.

    Args:
      each: n, number of targets of a family.
      draws: R, number of outputs of each target.

    Raises:
      PadirError: a strategy is unknown.
    """
    wanted = list(strategies_of(own, names))
    targets = Targets.of(each, draws, seed)
    rows: list[Row] = []
    for name, strategy, canvas in wanted:
        for steps in targets.steps():
            found, passes_G = errors_of(targets, strategy, canvas, steps, seed)
            rows += _rows(targets, found, canvas=canvas, strategy=name, steps=steps, passes=passes_G)
        tell(cell(rows[-1]))
    draws_of_truth = errors_of_draws(targets, seed)
    rows += _rows(targets, draws_of_truth, canvas="", strategy=DRAWS, steps=0, passes=np.zeros(len(targets.joints)))
    text = (
        f"Means over {each} targets of a family, ± half of the 95 % interval over targets; {draws:,} outputs of each."
        " not right: share of outputs that are no right answer; tv, kl: total variation and divergence of the outputs"
        " from the true distribution."
    )
    picture = plotting.png(plotting.draw_audit, rows, {*own}, DRAWS)
    sections = [Section("Strategies with exact conditionals", text, {"strategies": picture}, rows)]
    return Findings(rows, {"n": each, "outputs": draws}, sections)


def _rows(targets: Targets, found: Errors, passes: np.ndarray, **about: Any) -> Iterator[Row]:
    for family in dict.fromkeys(targets.families):
        mine_G = np.array(targets.families) == family
        row: Row = {"targets": family, **about, "passes": float(passes[mine_G].mean())}
        for name in ERRORS:
            value_G = getattr(found, name)[mine_G]
            row[name] = float(value_G.mean())
            row[f"{name}_±"] = (
                float(1.96 * value_G.std(ddof=1) / np.sqrt(len(value_G))) if len(value_G) > 1 else math.nan
            )
        yield row
