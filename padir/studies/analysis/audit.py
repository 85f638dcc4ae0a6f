"""Errors of samplers that run on exact probabilities, so that the sampler alone causes them.

There are two families of targets, n distributions each, over sentences of five tokens with two choices at a position:

- wordings: five right wordings. No right wording consists of the likeliest token of every position.
- spin glasses: Ising models of random couplings and weak fields, with several modes. Every sentence is right.

The law q of a strategy's outputs is enumerated (`padir.studies.analysis.law`). Let w be the target:

- not right: probability of an output that is no right answer.
- tv: total variation, half of the sum of |q - w| over all sentences.
- kl: KL from the target to the outputs in nats, the sum of w log(w / q). It is infinite if a right answer is never
  written, as by every strategy that draws nothing.
- over best: kl minus the least bound of a schedule with as many passes, which draws a stated number of random positions
  in each pass (`padir.studies.ising.pass_sizes`). The bound is a mean over orders. Outputs mix the orders, which may
  lower the KL below it.

Each error is a mean over the n targets of a family, with half the width of its 95 % interval over targets.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from padir import checks
from padir.errors import PadirError, first_line
from padir.from_text import module_of, own_object
from padir.refinement import Strategy, parse_strategy
from padir.reporting.page import Section, cell
from padir.reporting.tables import require_matplotlib
from padir.studies.analysis import plotting
from padir.studies.analysis.law import Law, law
from padir.studies.analysis.samplers import Sampler, Walk, checks_of
from padir.studies.analysis.study import Findings, Row, Tell, written
from padir.studies.analysis.truth import FIRST, ExactDecoder, Joint
from padir.studies.ising.pass_sizes import best_schedules
from padir.studies.ising.spin_models import Ising, distribution, spins

CANVASES = ("mask", "uniform")

# Every strategy with its own defaults, variants as published, and draws by those whose default is the argmax.
STRATEGIES = (
    "padir",
    "padir:temperature=1.0",
    "mask_predict",
    "constant",
    "rewrite_all",
    "rewrite_all:share=1.0,schedule=linear",
    "threshold",
    "factor",
    "easy_first",
    "rejecter",
    "prediction_rejecter",
    "p2",
    "p2:eta=0,judges=random,temperature=1.0",
    "p2:eta=0,judges=drawn,temperature=1.0",
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
PASSES = range(1, 8)

LENGTH = 5
_WORDINGS = 5
_CHECKED = 2  # targets that a function's checks are made with
_TOGETHER = 8  # targets whose states are enumerated at once


@dataclasses.dataclass(frozen=True)
class Targets:
    """Known distributions over sentences of one length.

    Attributes:
      families: the name of each distribution's family.
      joints: the distributions.
      pieces: number of regular pieces, V'.
    """

    families: Sequence[str]
    joints: Sequence[Joint]
    pieces: int

    @classmethod
    def of(cls, each: int, seed: int) -> Targets:
        """Makes `each` targets of both families."""
        rng = np.random.default_rng(seed)
        found = [wordings(rng) for _ in range(each)] + [spin_glass(rng) for _ in range(each)]
        return cls(["wordings"] * each + ["spin glasses"] * each, found, 2)


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


def errors(outputs: Law, truth: Sequence[Joint]) -> Errors:
    """The errors of a law of outputs, whose tokens have the exact decoder's numbers."""
    found = []
    for target, joint in enumerate(truth):
        mine = outputs.target_K == target
        is_answer = (outputs.tokens_KL[mine][:, None] == FIRST + joint.numbered()).all(-1)
        prob_K = outputs.prob_K[mine] @ is_answer
        rest = max(0.0, 1 - prob_K.sum())
        with np.errstate(divide="ignore"):
            kl = (joint.prob_K * (np.log(joint.prob_K) - np.log(prob_K))).sum()
        found.append((rest, (np.abs(prob_K - joint.prob_K).sum() + rest) / 2, kl))
    return Errors(*np.array(found).T)


def suits(strategy: Strategy | Sampler, canvas: str) -> bool:
    """True if a strategy can start from this kind of canvas, with a decoder that knows which positions are masked."""
    if isinstance(strategy, Sampler):
        return canvas == "mask"
    unmet = {"pieces"} if canvas == "mask" else {"mask", "decontextualised"}
    judged = "prediction" if canvas == "mask" else "token"  # the exact decoder has no other rejecter head
    return not unmet & getattr(strategy, "needs", frozenset()) and getattr(strategy, "head_judges", judged) == judged


def errors_of(
    targets: Targets, strategy: Strategy | Sampler, canvas: str, steps: int
) -> tuple[Errors, np.ndarray] | None:
    """(errors, mean number of passes) of a strategy at each target; None if a pass has too many states to enumerate.

    Raises:
      PadirError: the strategy adds up logits (the remask "logits"), which an oracle's own numbering does not allow.
    """
    if getattr(strategy, "remask", None) == "logits":
        raise PadirError("remask", '"previous", "start" or "none" with an oracle', "logits")
    parts = []
    for begin in range(0, len(targets.joints), _TOGETHER):
        joints = targets.joints[begin : begin + _TOGETHER]
        if isinstance(strategy, Sampler):
            found = Walk(strategy, joints, targets.pieces).law(steps)
        else:
            try:
                found = law(strategy, ExactDecoder.of(joints, targets.pieces), steps, masked=canvas == "mask")
            except PadirError:
                raise
            except Exception as error:  # of a strategy of one's own
                remedy = "draw by choose, choose_share, random_pieces and sample_tokens alone"
                what = f"{type(strategy).__name__} cannot be enumerated ({type(error).__name__}: {first_line(error)})"
                raise PadirError(what, remedy=remedy) from error
        if found is None:
            return None
        parts.append((*errors(found, joints), found.passes_G))
    *values, passes_G = (np.concatenate(each) for each in zip(*parts, strict=True))
    return Errors(*values), passes_G


def best_of(joint: Joint) -> list[float]:
    """The least bound on KL of a schedule with each number of `PASSES`, which draws random positions in each pass."""
    costs = [cost for cost, _ in best_schedules(joint.entropy_curve())]
    return [costs[min(passes, len(costs)) - 1] for passes in PASSES]


def strategies_of(
    own: Sequence[str] = (), names: Sequence[str] | None = None, samples: int = 1_000
) -> Iterator[tuple[str, Strategy | Sampler, str]]:
    """(name, strategy, canvas) of every audit: own samplers and strategies, and the named ones (else `STRATEGIES`).

    Args:
      own: each as MODULE:NAME, a function (`padir.studies.analysis.samplers`), a strategy or its class.
      samples: number of samples of each target for functions that draw by a seed.

    Raises:
      PadirError: a name is unknown, or is neither; this is noticed before the first audit.
    """
    made = {name: _own(name, samples) for name in own}
    made |= {name: parse_strategy(name) for name in (STRATEGIES if names is None else names)}
    return ((name, one, canvas) for name, one in made.items() for canvas in CANVASES if suits(one, canvas))


def _own(name: str, samples: int) -> Strategy | Sampler:
    if not module_of(name):
        raise PadirError("a sampler or strategy of one's own", "MODULE:NAME", name)
    found = own_object(name, "sampler or strategy")
    if callable(found) and not isinstance(found, type | Strategy):
        return Sampler(name, found, samples)
    try:
        strategy = found() if isinstance(found, type) else found
    except TypeError as error:
        remedy = "name an instance, or give all fields defaults"
        raise PadirError(f"no strategy {name} ({error})", remedy=remedy) from None
    if not isinstance(strategy, Strategy):
        expected = "a function step(tokens, logits, uniforms), or a strategy, with init, step and stop"
        raise PadirError(name, expected, type(strategy).__name__)
    return strategy


ERRORS = ("not_right", "tv", "kl")
COLUMNS = ("targets", "canvas", "strategy", "steps", *ERRORS, "over_best")
"""The columns of the terminal's table; files have those of intervals, too."""


@dataclasses.dataclass(frozen=True)
class AuditOptions:
    """Extent of an audit.

    Attributes:
      targets: n, number of targets of each family.
      strategies: strategies as the command line names them; None audits all.
      samples: number of samples of each target for functions that draw by a seed.

    Raises:
      PadirError: a value out of its range.
    """

    targets: int = 32
    strategies: tuple[str, ...] | None = None
    samples: int = 1_000

    def __post_init__(self):
        checks.counts(1, targets=self.targets, samples=self.samples)


def run(
    own: Sequence[str],
    options: AuditOptions = AuditOptions(),  # noqa: B008
    *,
    seed: int = 0,
    output: str | None = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Audits own and published samplers, and writes audit.json, .html and a picture into a folder if one is given.

    Args:
      own: as in `strategies_of`.
      seed: seed of the targets.
      tell: receives lines of progress, and the checks of own functions.

    Returns:
      The content of audit.json: "checks" of own functions and "rows" of errors.

    Raises:
      PadirError: a sampler is unknown, or draws in a way that cannot be enumerated; or a folder is given, and
        matplotlib is not installed.
    """
    if output:
        require_matplotlib()
    findings = _audited(own, options, seed, tell, draws=bool(output))
    return written({"subject": "audit", "seed": seed}, findings, output)


def _audited(own: Sequence[str], options: AuditOptions, seed: int, tell: Tell, *, draws: bool) -> Findings:
    each, samples = options.targets, options.samples
    wanted = list(strategies_of(own, options.strategies, samples))
    targets = Targets.of(each, seed)
    best_GT = np.array([best_of(joint) for joint in targets.joints])
    rows: list[Row] = []
    checked: list[Row] = []
    left_out = []
    for name, strategy, canvas in wanted:
        if isinstance(strategy, Sampler):
            if not strategy.is_exact:
                tell(f"{name} is sampled ({samples:,} outputs of each target): tv and kl are too large")
            answers = []
            for check in checks_of(strategy, targets.joints[:_CHECKED], targets.pieces, PASSES):
                answers.append(check.answer)
                checked.append({"sampler": name, **check._asdict()})
                tell(f"{name} {check.question}: {check.answer}{f' ({check.evidence})' if check.evidence else ''}")
            if answers == ["no"]:  # it does not repeat itself, so that nothing else was asked
                tell(f"{name} has no law: draw from uniforms, or from seed, alone")
                continue
        for steps, best_G in zip(PASSES, best_GT.T, strict=True):
            found = errors_of(targets, strategy, canvas, steps)
            if found is None:
                left_out.append(f"{name} on {canvas} from {steps} passes on")
                tell(f"{left_out[-1]}: too many states to enumerate")
                break
            rows += _rows(targets, *found, best_G, canvas=canvas, strategy=name, steps=steps)
        else:
            tell(cell(rows[-1]))
    drawn = [name for name, one, _ in wanted if isinstance(one, Sampler) and not one.is_exact]
    text = (
        f"Exact errors: means over {each} targets of a family, ± half of the 95 % interval over targets. not right:"
        " probability of an output that is no right answer; tv, kl: total variation and divergence of the outputs from"
        " the target; over best: kl minus the bound of the best schedule of random positions with as many passes."
    )
    if drawn:
        text += (
            f" Sampled, not exact ({samples:,} outputs of each target: tv is too large, and kl infinite"
            f" where a right answer was not sampled): {', '.join(drawn)}."
        )
    if left_out:
        text += f" Left out, because they have too many states to enumerate: {'; '.join(left_out)}."
    pictures = {"kl": plotting.png(plotting.draw_audit, rows, {*own})} if rows and draws else {}
    sections = [Section("What each sampler does", "", {}, checked)] if checked else []
    sections += [Section("Strategies with exact conditionals", text, pictures, rows)]
    return Findings(rows, {"n": each, "left_out": left_out, "sampled": drawn, "checks": checked}, sections)


def _rows(targets: Targets, found: Errors, passes_G: np.ndarray, best_G: np.ndarray, **about: Any) -> Iterator[Row]:
    for family in dict.fromkeys(targets.families):
        mine_G = np.array(targets.families) == family
        row: Row = {"targets": family, **about, "passes": float(passes_G[mine_G].mean())}
        for name in ERRORS:
            value_G = getattr(found, name)[mine_G]
            finite = len(value_G) > 1 and np.isfinite(value_G).all()
            row[name] = _rounded(value_G.mean())
            row[f"{name}_±"] = _rounded(1.96 * value_G.std(ddof=1) / np.sqrt(len(value_G))) if finite else math.nan
        row["over_best"] = _rounded((found.kl - best_G)[mine_G].mean())
        yield row


def _rounded(value: float) -> float:
    """Six digits after the point, which the conditionals of float32 have."""
    return round(float(value), 6) + 0.0  # no -0.0
