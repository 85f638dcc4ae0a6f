"""Makes decoding strategies from their names and hyperparameters, or from text such as "threshold:tau=0.9".

`PredictorCorrector` stands here because it makes the strategy that it wraps from such text.
"""

from __future__ import annotations

import ast
import dataclasses
import math
import typing
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree

from padir import checks
from padir.errors import PadirError, nearest
from padir.refinement.canvas import Canvas, choose_rows, hide, restore, write
from padir.refinement.draws import CORRECTION, PLACE, choose
from padir.refinement.protocols import Strategy
from padir.refinement.scores import Output
from padir.refinement.segments import share_of
from padir.refinement.strategies.confidence import EasyFirst, EntropyBound, Threshold
from padir.refinement.strategies.correcting import GibbsCorrector
from padir.refinement.strategies.parallel import Factor, Frechet
from padir.refinement.strategies.rejecter import Rejecter
from padir.refinement.strategies.remasking import PathPlanning, Remdm
from padir.refinement.strategies.renoising import Renoise
from padir.refinement.strategies.rewriting import Constant, MaskPredict, Padir
from padir.refinement.strategies.sampling import BlockGibbs, IndependentParallel, SundaeSampling, sample_tokens
from padir.storage.typecheck import fits


@flax.struct.dataclass
class CorrectorMemory:
    """Memory of `PredictorCorrector`.

    Attributes:
      inner: memory of the wrapped strategy.
      ended_BL: positions of sentences that the wrapped strategy has finished.
      hidden_BL: written positions that are hidden in order to be drawn again.
    """

    inner: PyTree
    ended_BL: Bool[Array, "B L"]
    hidden_BL: Bool[Array, "B L"]

    @property
    def oscillated_B(self) -> Bool[Array, " B"]:
        """True for rows that the wrapped strategy has finished because they oscillated.

        Raises:
          AttributeError: the wrapped strategy does not tell.
        """
        return self.inner.oscillated_B


@dataclasses.dataclass(frozen=True)
class PredictorCorrector:
    """Adds correcting passes to another strategy, which hide a share of the written tokens and draw them again.

    With n corrections after each of its steps, N passes are ceil(N / (1 + n)) steps of the strategy. A correcting pass
    changes only positions that the strategy has written, and those that it has left hidden stay hidden. So on exact
    conditionals a pass that draws one position at temperature 1 leaves the joint distribution of the written tokens
    unchanged if it was right, and brings it nearer if not. All passes are taken: when the strategy has finished a
    sentence, every further pass corrects it.

    Attributes:
      strategy: the strategy as text, such as "threshold:tau=0.9"; neither easy_first nor independent_parallel, which
        have orders and tokens of their own, nor predictor_corrector.
      corrections: n, number of correcting passes after each step, at least 1.
      share: share of a sentence's written positions that a correcting pass draws again, rounded up, in (0, 1].
      temperature: temperature of these draws, at least 0; 0 for the argmax.

    Raises:
      PadirError: a number is out of its range, or the text is no strategy or one that cannot be corrected.
    """

    strategy: str = "mask_predict"
    corrections: int = 1
    share: float = 0.1
    temperature: float = 0.0

    def __post_init__(self):
        checks.at_least(1, **checks.fields_of(self, "corrections"))
        checks.above(0, **checks.fields_of(self, "share"))
        checks.within(0, 1, **checks.fields_of(self, "share"))
        checks.below(0, math.inf, **checks.fields_of(self, "temperature"))
        name = self.strategy.partition(":")[0]
        if name in ("easy_first", "independent_parallel", "predictor_corrector"):
            raise PadirError("PredictorCorrector.strategy", "a strategy that can be corrected", self.strategy)
        object.__setattr__(self, "needs", getattr(self.wrapped(), "needs", frozenset()))

    def wrapped(self) -> Strategy:
        """The strategy whose steps are corrected."""
        return parse_strategy(self.strategy)

    def init(self, key_B, canvas: Canvas) -> CorrectorMemory:
        nowhere_BL = jnp.zeros_like(canvas.free_BL)
        return CorrectorMemory(self.wrapped().init(key_B, canvas), nowhere_BL, nowhere_BL)

    def step(self, key_B, canvas: Canvas, output: Output, memory: CorrectorMemory, *, step, num_steps):
        cycle = 1 + self.corrections
        place, steps = {"step": step // cycle, "num_steps": (num_steps + self.corrections) // cycle}, jnp.int32(step)
        stepped, inner = self.wrapped().step(key_B, canvas, output, memory.inner, **place)
        key_B = jax.vmap(lambda key: jax.random.fold_in(key, CORRECTION))(key_B)
        drawn = sample_tokens(key_B, output.logits_BLV, canvas.segment_BL, self.temperature)
        corrected = write(canvas, memory.hidden_BL, *drawn)
        inner_BL = ~memory.ended_BL & (steps % cycle == 0)
        after = restore(corrected, inner_BL, stepped)
        inner = choose_rows(inner_BL.any(-1), inner, memory.inner)
        written_BL = canvas.free_BL & (after.score_BL < 0)
        ended_BL = memory.ended_BL | (inner_BL & stepped.done_BL)
        # Where the next pass corrects.
        corrects_BL = (ended_BL | (steps % cycle < self.corrections)) & (steps < num_steps - 1)
        count_BL = share_of(self.share, written_BL, canvas.segment_BL)
        hidden_BL = choose(key_B, written_BL, canvas.segment_BL, count_BL, PLACE) & corrects_BL
        return hide(after, hidden_BL), CorrectorMemory(inner, ended_BL, hidden_BL)


STRATEGIES: dict[str, Callable[..., Strategy]] = {
    "padir": Padir,
    "mask_predict": MaskPredict,
    "constant": Constant,
    "easy_first": EasyFirst,
    "sundae": SundaeSampling,
    "rejecter": Rejecter,
    "threshold": Threshold,
    "entropy_bound": EntropyBound,
    "block_gibbs": BlockGibbs,
    "independent_parallel": IndependentParallel,
    "renoise": Renoise,
    "factor": Factor,
    "frechet": Frechet,
    "remdm": Remdm,
    "p2": PathPlanning,
    "gibbs_corrector": GibbsCorrector,
    "predictor_corrector": PredictorCorrector,
}


def get_strategy(name: str, **hyperparameters) -> Strategy:
    """Makes the decoding strategy of a given name.

    Raises:
      PadirError: no strategy has that name, or a hyperparameter is unknown or of the wrong type; the message lists the
        known names.

    >>> get_strategy("threshold", tau=1)
    Threshold(tau=1.0, final_tau=None, schedule=None)
    """
    if name not in STRATEGIES:
        raise PadirError(f"no strategy is called {name!r}", remedy=nearest(name, STRATEGIES))
    return STRATEGIES[name](**checked_call(STRATEGIES[name], name, hyperparameters))


def checked_call(cls: Any, name: str, values: dict[str, Any], **further: Any) -> dict[str, Any]:
    """Checks values for the fields of a dataclass that have a default; makes floats of integers and tuples of lists.

    Args:
      name: the name of the dataclass in messages.
      further: names and defaults of values that are no fields.

    Raises:
      PadirError: a field is unknown, or a value has the wrong type; the message lists the fields.
    """
    hints = typing.get_type_hints(cls) | {field: type(default) for field, default in further.items()}
    fields = [field for field in dataclasses.fields(cls) if field.default is not dataclasses.MISSING]
    texts = {field.name: f"{field.name}: {field.type} = {field.default!r}" for field in fields}
    texts |= {field: f"{field}: {type(default).__name__} = {default!r}" for field, default in further.items()}
    listed = ", ".join(texts.values()) or "none"
    checked = dict(values)
    for field, value in values.items():
        if field not in texts:
            raise PadirError(f"{name} has no hyperparameter {field!r}: it has {listed}")
        if not fits(value, hints[field]):
            raise PadirError(f"{field}={value!r} is of the wrong type for {name}: it has {listed}")
        if type(value) is int and not isinstance(value, hints[field]):
            checked[field] = float(value)
        if isinstance(value, list):
            checked[field] = tuple(value)
    return checked


def parse_strategy(text: str) -> Strategy:
    """Makes a strategy from text such as "threshold" or "threshold:tau=0.9,final_tau=0.5", as on the command line.

    Raises:
      PadirError: the text has another form, or `get_strategy` refuses the name or a hyperparameter.

    >>> parse_strategy("block_gibbs:block=3,order=margin")
    BlockGibbs(block=3, order='margin', temperature=1.0, parallel=False)
    """
    name, values = parse_call(text, "strategy", "threshold:tau=0.9")
    return get_strategy(name, **values)


def parse_call(text: str, noun: str, example: str) -> tuple[str, dict[str, Any]]:
    """Splits NAME or NAME:FIELD=VALUE,FIELD=VALUE; values are Python literals, and a bare word is a string.

    Args:
      noun, example: what the text stands for and an example of it, for the error message.

    Raises:
      PadirError: the text has another form.

    >>> parse_call("block_gibbs:block=3,order=margin", "strategy", "threshold:tau=0.9")
    ('block_gibbs', {'block': 3, 'order': 'margin'})
    """
    name, _, fields = text.partition(":")
    try:
        call: Any = ast.parse(f"dict({fields})", mode="eval").body
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError
        return name, {
            keyword.arg: keyword.value.id if isinstance(keyword.value, ast.Name) else ast.literal_eval(keyword.value)
            for keyword in call.keywords
        }
    except (ValueError, SyntaxError, AttributeError):
        raise PadirError(
            f"a {noun} is written NAME or NAME:FIELD=VALUE,FIELD=VALUE, such as {example}, got {text!r}"
        ) from None
