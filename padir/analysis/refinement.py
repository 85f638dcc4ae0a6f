"""How refinement goes: what changes from step to step, how sure the model is of it, and what comes of it.

Of one run of T steps: tokens that changed and calibration. For calibration each sentence gets its reference's length,
and a token is right if the reference has the same one at the same place. Where references are drawn from the right
translations, as in the built-in corpus, a model that says 0.7 of a token would be right 7 times in 10: at step 1, that
is, where it is told nothing else. Later it is told its own draft.

Of every strategy and number of steps: exact match and, on the built-in corpus, right translations and mode mixing. A
strategy is decoded anew for every number of steps, as its schedule depends on it.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from padir.analysis.attention import check_model
from padir.analysis.calibration import Reliability, reliability
from padir.analysis.passes import Pass, reference_tokens, refined
from padir.canvas import Strategy
from padir.corruption import Mask, noise_kinds
from padir.decoding import Decoding
from padir.errors import PadirError
from padir.evaluation.evaluate import TestSet, evaluate
from padir.strategies import STRATEGIES, parse_strategy
from padir.translate import Translator

FIGURES = ("bleu", "exact_match", "toy_right", "toy_mixed", "stutter", "passes")
MOST_TOKENS = 16  # of a sentence that is shown
# At temperature 0, so that strategies differ in what they write and not in how they draw it.
CORRECTORS = (
    "block_gibbs:temperature=0.0",
    "block_gibbs:block=4,temperature=0.0",
    "block_gibbs:block=4,temperature=0.0,parallel=True",
    "independent_parallel:temperature=0.0",
)


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of all sentences.

    Attributes:
      changed: share of the free tokens that differ from those before the step.
      settled: share of the sentences in which none does.
      reliability: of the tokens that had been written by the end of the step.
    """

    changed: float
    settled: float
    reliability: Reliability


def steps(translator: Translator, test_set: TestSet, decoding: Decoding) -> list[Step]:
    """What every step of `decoding` does, with the references' lengths.

    Raises:
      PadirError: the model cannot be looked into, or there are no sentences.
    """
    check_model(translator.card.config)
    targets = reference_tokens(translator, test_set)
    num_steps = decoding.num_steps
    changed, free, settled = np.zeros(num_steps), 0, np.zeros(num_steps)
    confidence: list[list[Any]] = [[] for _ in range(num_steps)]
    right: list[list[Any]] = [[] for _ in range(num_steps)]
    sentences = 0
    for one in refined(translator, test_set, decoding, [len(tokens) for tokens in targets]):
        for row, number in one.rows():
            length = int(one.length_B[row]) - 1
            tokens_TL, score_TL = one.tokens_TBL[:, row, :length], one.score_TBL[:, row, :length]
            differs_TL = tokens_TL[1:] != tokens_TL[:-1]
            changed += differs_TL.sum(-1)
            settled += ~differs_TL.any(-1)
            free += length
            sentences += 1
            target_L = np.array(targets[number][:length])
            for step in range(num_steps):
                written_L = ~np.isnan(score_TL[step + 1])
                confidence[step].append(np.exp(score_TL[step + 1][written_L]))
                right[step].append((tokens_TL[step + 1] == target_L)[written_L])
    return [
        Step(
            float(changed[t] / max(1, free)),
            float(settled[t] / sentences),
            reliability(np.concatenate(confidence[t]), np.concatenate(right[t])),
        )
        for t in range(num_steps)
    ]


def outcomes(
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    strategies: Sequence[str],
    num_steps: Sequence[int],
    progress: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """A row for every strategy that the model can run and every number of steps.

    Sentences are translated as `decoding` says, with one length unless it says otherwise.

    Args:
      strategies: as the command line names them.
    """
    rows = []
    for name in strategies:
        for count in num_steps:
            one = with_strategy(translator, decoding, parse_strategy(name))
            figures = evaluate(translator, test_set, dataclasses.replace(one, num_steps=count)).figures
            row = {"strategy": name, "steps": count} | {k: figures[k] for k in FIGURES if k in figures}
            rows.append(row)
            progress(row)
    return rows


def with_strategy(translator: Translator, decoding: Decoding, strategy: Strategy) -> Decoding:
    """A decoding with this strategy, and with a canvas of masks where that needs one and the model knows them.

    Raises:
      PadirError: the model cannot run it.
    """
    canvas = decoding.canvas
    if "mask" in getattr(strategy, "needs", ()) and not translator.card.config.decontextualised:
        assert translator.card.corruption is not None
        kinds = noise_kinds(translator.card.corruption)
        canvas = Mask() if canvas is None and kinds is not None and "mask" in kinds else canvas
    changed = dataclasses.replace(decoding, strategy=strategy, canvas=canvas)
    translator.resolved(changed)
    return changed


def runnable(translator: Translator, decoding: Decoding) -> tuple[list[str], dict[str, str]]:
    """The strategies that a model can run, at temperature 0 where they have one, and why it cannot run the others."""
    names, refused = [], collections.OrderedDict()
    for name, cls in STRATEGIES.items():
        text = name
        if any(field.name == "temperature" for field in dataclasses.fields(cls)):  # type: ignore[arg-type]
            text = f"{name}:temperature=0.0"
        if name == "sundae":
            text += ",order=uncertain"
        try:
            with_strategy(translator, decoding, parse_strategy(text))
            names.append(text)
        except PadirError as error:
            refused[name] = str(error)
    return names, refused


def examples(translator: Translator, test_set: TestSet, decoding: Decoding, count: int) -> list[tuple[Pass, int, int]]:
    """(batch, row, sentence) of the sentences that took the most steps, the longest first among these.

    Long ones (`MOST_TOKENS`), of which no one would see anything, come only where there is no other, shortest first.
    """
    found = [
        (int(one.passes_B[row]), int(one.length_B[row]), -number, one, row)
        for one in refined(translator, test_set, decoding)
        for row, number in one.rows()
        if one.length_B[row] > 2
    ]
    short = [each for each in found if each[1] <= MOST_TOKENS]
    found = sorted(short, key=lambda e: e[:3], reverse=True) or sorted(found, key=lambda e: (e[1], -e[2]))
    return [(one, row, -number) for _, _, number, one, row in found[:count]]
