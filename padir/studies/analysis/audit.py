"""Errors of decoding strategies that run on exact probabilities, and on a model's, for the same sentences.

With an exact decoder (`padir.studies.analysis.truth`) the strategy alone causes the error. A model causes the rest of
its error. The outputs of one sentence are R draws, counted by right answer. Let w_k be the probability of a right
answer, c_k its count, and q_k = c_k / R:

- not right: share of the R outputs that are no right answer. An exact decoder gives only tokens that fit some
  right answer, so these outputs are mixtures of right answers.
- total variation: (sum over k of |q_k - w_k| + share of outputs that are no right answer) / 2. It is exact for a
  strategy that always gives the same output. Otherwise the estimate from R draws is biased upward; `sampling_floor`
  computes about the largest bias: the estimate for R draws from the truth itself.
- divergence: KL from the truth to the outputs in nats, sum over k of w_k log(w_k / q_k). To make it finite, q_k is (c_k
  + 1/2) / (R + (K + 1) / 2) here, with one further cell for outputs that are no right answer. If a strategy never gives
  some right answer, the true divergence is infinite, and this value is only a lower bound.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Int

from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.refinement import Corruption, Mask, Strategy, Uniform, parse_strategy
from padir.reporting.page import Section, cell
from padir.studies.analysis import plotting, refining
from padir.studies.analysis.refining import with_strategy
from padir.studies.analysis.study import AnalysisOptions, Findings, Row, Tell, refined
from padir.studies.analysis.truth import FIRST, ExactDecoder, Joint, decode, joints
from padir.studies.ising.experiments import flat_truth, peaky_truth
from padir.studies.ising.spin_models import distribution, spins

CANVASES: dict[str, Corruption] = {"mask": Mask(1.0), "uniform": Uniform(1.0)}

# Every strategy with its own defaults, and sampling variants of those whose default is the argmax.
STRATEGIES = (
    "padir",
    "padir:temperature=1.0",
    "mask_predict",
    "constant",
    "threshold",
    "entropy_bound",
    "factor",
    "frechet",
    "easy_first",
    "rejecter",
    "p2",
    "p2:temperature=1.0",
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

_SPINS = 6
_ISING = {"ising flat": flat_truth, "ising peaky": peaky_truth}


@dataclasses.dataclass(frozen=True)
class Truth:
    """Known distributions over the outputs of G sentences of one length.

    Attributes:
      name: the source of the distributions.
      joints: the distributions.
      pieces: number of regular pieces, V'.
      draws: R, number of outputs drawn for each sentence.
      test_set: the sentences; empty without sentences (Ising models).
    """

    name: str
    joints: Sequence[Joint]
    pieces: int
    draws: int
    test_set: TestSet

    @property
    def length(self) -> int:
        """Number of free tokens."""
        return self.joints[0].tokens_KL.shape[1]

    def steps(self) -> list[int]:
        """The numbers of passes that are tried: 1, 2, 4, ... and the length with EOS, L."""
        return [*(1 << n for n in range(self.length.bit_length()) if 1 << n <= self.length), self.length + 1]


def toy_truth(translator: Translator, test_set: TestSet, draws: int) -> Truth:
    """The sentences that have several right translations of the same length, for the commonest length in tokens.

    Raises:
      PadirError: a source is not of toy_de_en's grammar, or no sentence has such translations.
    """
    found: dict[int, dict[int, Joint]] = {}
    for number, source in enumerate(test_set.sources):
        for length, joint in joints(source, translator.tokenizer).items():
            found.setdefault(length, {})[number] = joint
    if not found:
        raise PadirError("no sentence has several right translations of one length: give more sentences")
    chosen = found[max(found, key=lambda length: (len(found[length]), -length))]
    some = dataclasses.replace(
        test_set,
        sources=[test_set.sources[number] for number in chosen],
        references=[test_set.references[number] for number in chosen],
    )
    ids = translator.tokenizer.ids
    return Truth(test_set.task, [*chosen.values()], ids.end_regular - ids.first_regular, draws, some)


def ising_truths(draws: int) -> list[Truth]:
    """The two Ising models of the paper's figures 1 and 2; a state is a sentence of six tokens, each + or -."""
    nothing = TestSet("", "", "", [], [])
    found = []
    for name, make in _ISING.items():
        state_SN = (spins(np.arange(1 << _SPINS), _SPINS) > 0).astype(int)
        found.append(Truth(name, [Joint(state_SN, distribution(make(_SPINS)))], 2, draws, nothing))
    return found


class Errors(NamedTuple):
    """Means over sentences of the errors that this module's docstring defines."""

    not_right: float
    tv: float
    kl: float


def errors(counts: Sequence[np.ndarray], truth: Sequence[Joint], draws: int) -> Errors:
    """Errors of counts of right answers among `draws` outputs of every sentence; sentences may have different K.

    >>> joint = Joint(np.array([[7, 8], [8, 7]]), np.array([0.5, 0.5]))
    >>> errors([np.array([50, 0])], [joint], 100)[:2]
    (0.5, 0.5)
    """
    found = []
    for count_K, joint in zip(counts, truth, strict=True):
        rest = 1 - count_K.sum() / draws
        tv = (np.abs(count_K / draws - joint.prob_K).sum() + rest) / 2
        smooth_K = (count_K + 0.5) / (draws + (len(count_K) + 1) / 2)
        found.append((rest, tv, (joint.prob_K * np.log(joint.prob_K / smooth_K)).sum()))
    return Errors(*(float(mean) for mean in np.mean(found, axis=0)))


def sampling_floor(truth: Truth, seed: int, repeats: int = 20) -> Errors:
    """Errors of draws from the truth itself, as many as the outputs of a strategy; means over `repeats` rounds."""
    rng = np.random.default_rng(seed)
    rounds = [
        errors([rng.multinomial(truth.draws, joint.prob_K) for joint in truth.joints], truth.joints, truth.draws)
        for _ in range(repeats)
    ]
    return Errors(*(float(mean) for mean in np.mean(rounds, axis=0)))


def suits(strategy: Strategy, canvas: str) -> bool:
    """True if a strategy can start from this kind of canvas, with a decoder that knows which positions are hidden."""
    unmet = {"pieces"} if canvas == "mask" else {"mask", "decontextualised"}
    return not unmet & getattr(strategy, "needs", frozenset())


def of_oracle(truth: Truth, strategy: Strategy, canvas: str, steps: int, seed: int) -> tuple[Errors, float]:
    """(errors, mean number of passes) of a strategy with the exact decoder."""
    oracle = ExactDecoder.of(truth.joints, truth.pieces)
    key = jax.random.key(seed)
    corruption = CANVASES[canvas]
    tokens_GRL, passes_GR = decode(key, oracle, steps, strategy=strategy, corruption=corruption, draws=truth.draws)
    counts = []
    for tokens_RL, joint in zip(tokens_GRL, truth.joints, strict=True):
        _, index_KL = np.unique(joint.tokens_KL, return_inverse=True)
        counts.append(_count(tokens_RL, FIRST + index_KL.reshape(joint.tokens_KL.shape)))
    return errors(counts, truth.joints, truth.draws), float(passes_GR.mean())


def of_model(
    translator: Translator, truth: Truth, strategy: str, canvas: str, steps: int, decoding: Decoding, draws: int
) -> Errors | None:
    """Errors of a model with the same strategy, canvas and length; None if it cannot run them.

    The `draws` outputs of a sentence have different seeds: the seed of `decoding` and the numbers after it.
    """
    try:
        made = with_strategy(
            translator, dataclasses.replace(decoding, canvas=CANVASES[canvas]), parse_strategy(strategy)
        )
    except PadirError:
        return None
    counts = [np.zeros(len(joint.prob_K), int) for joint in truth.joints]
    lengths = [truth.length + 1] * len(counts)
    for draw in range(draws):
        one_draw = dataclasses.replace(made, num_steps=steps, seed=decoding.seed + draw)
        for one in refined(translator, truth.test_set, one_draw, lengths):
            for row, number in one.rows():
                output_L = one.tokens_TBL[-1, row, : truth.length]
                counts[number] += _count(output_L[None], truth.joints[number].tokens_KL)
    return errors(counts, truth.joints, draws)


def _count(tokens_RL: Int[np.ndarray, "R L"], answer_KL: Int[np.ndarray, "K L"]) -> Int[np.ndarray, " K"]:
    """Number of outputs that are each right answer."""
    return (tokens_RL[:, None] == answer_KL).all(-1).sum(0)


def strategies_of(names: Sequence[str] | None) -> Iterator[tuple[str, Strategy, str]]:
    """(name, strategy, canvas) of every audit: the named strategies, else `STRATEGIES`, each with every fitting canvas.

    Raises:
      PadirError: a name is unknown; this is noticed before the first audit.
    """
    made = {name: parse_strategy(name) for name in (STRATEGIES if names is None else names)}
    return ((name, one, canvas) for name, one in made.items() for canvas in CANVASES if suits(one, canvas))


COLUMNS = ("truth", "canvas", "strategy", "steps", "passes", "not_right", "tv", "kl", "model_not_right", "model_tv")
_LABELS = {"tv": "total variation from the truth", "not_right": "outputs that are no right answer"}
_AGAINST = {name: (label, f"model_{name}") for name, label in _LABELS.items()}
_ISING_OUTPUTS = 16  # times the outputs of a sentence: two models instead of many sentences, and more states


def analyse(
    translator: Translator, test_set: TestSet, decoding: Decoding, options: AnalysisOptions, tell: Tell
) -> Findings:
    """Measures every strategy with an exact decoder, on the built-in corpus and on two Ising models.

    Raises:
      PadirError: the sentences are not those of toy_de_en, or a strategy is unknown.
    """
    if test_set.task != refining.TOY or test_set.source_language != "de":
        raise PadirError("the corpus", "toy_de_en, whose right translations are known", test_set.task or "none")
    wanted = list(strategies_of(options.strategies))
    toy = toy_truth(translator, test_set, options.outputs)
    ising = ising_truths(_ISING_OUTPUTS * options.outputs) if options.ising else []
    tell(f"{len(toy.joints):,} sentences of {toy.length + 1} tokens with several right translations of this length")
    rows: list[Row] = []
    for truth in (toy, *ising):
        for name, strategy, canvas in wanted:
            for steps in truth.steps():
                found, passes = of_oracle(truth, strategy, canvas, steps, decoding.seed)
                row: Row = {"truth": truth.name, "canvas": canvas, "strategy": name, "steps": steps, "passes": passes}
                row |= found._asdict()
                if options.model_outputs and truth is toy:
                    own = of_model(translator, toy, name, canvas, steps, decoding, options.model_outputs)
                    row |= {} if own is None else {"model_not_right": own.not_right, "model_tv": own.tv}
                rows.append(row)
                tell(cell(row))
    floors = {truth.name: sampling_floor(truth, decoding.seed)._asdict() for truth in (toy, *ising)}
    if options.model_outputs:
        floors["model"] = sampling_floor(dataclasses.replace(toy, draws=options.model_outputs), decoding.seed)._asdict()
    about: dict[str, Any] = {
        "measured": len(toy.joints),
        "length": toy.length + 1,
        "pieces": toy.pieces,
        "outputs": toy.draws,
        "model_outputs": options.model_outputs,
        "floors": floors,
    }
    return Findings(rows, about, _sections(rows))


def _merged(rows: list[Row], columns: Iterable[str]) -> list[Row]:
    """Rows in which strategies whose columns agree to 0.01 are merged, as "padir and 2 others"."""
    lines: dict[str, list[Row]] = {}
    for row in rows:
        lines.setdefault(row["strategy"], []).append(row)
    alike: dict[tuple[Any, ...], list[str]] = {}
    for strategy, line in lines.items():
        alike.setdefault(tuple(round(row[name], 2) for row in line for name in columns), []).append(strategy)
    named = {each[0]: f"{each[0]} and {len(each) - 1} others" if len(each) > 1 else each[0] for each in alike.values()}
    return [{**row, "strategy": named[row["strategy"]]} for row in rows if row["strategy"] in named]


def _sections(rows: list[Row]) -> list[Section]:
    sections = []
    for truth in dict.fromkeys(row["truth"] for row in rows):
        mine = [row for row in rows if row["truth"] == truth]
        labels = dict(_LABELS)
        if not any(row["not_right"] for row in mine):
            del labels["not_right"]  # every state of an Ising model is right
        pictures = {}
        for canvas in dict.fromkeys(row["canvas"] for row in mine):
            here = [row for row in mine if row["canvas"] == canvas]
            pictures[f"{truth} {canvas}"] = plotting.png(plotting.draw_outcomes, _merged(here, labels), labels)
            if any("model_tv" in row for row in here):
                pictures[f"{truth} {canvas} model"] = plotting.png(plotting.draw_errors, here, _AGAINST)
        sections.append(
            Section(
                f"Every strategy beside exact conditionals: {truth}",
                "not right: share of outputs that are no right answer; tv, kl: total variation and divergence of the"
                " outputs from the true distribution, means over sentences. A column of the model, if there is one, is"
                " that of the model at the same sentences, length, strategy and canvas: what its error has beyond the"
                " strategy's own is the model's.",
                pictures,
                mine,
            )
        )
    return sections
