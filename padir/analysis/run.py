"""What `padir analyse` runs: each of its subjects from a model and a test set to figures, pictures and a page."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from padir.analysis import agreement, figures, pairs, refinement, report, stutter
from padir.analysis.association import auc, roc
from padir.analysis.attention import check_model
from padir.analysis.conditionals import check_values
from padir.analysis.passes import Pass, first_sentences, pieces
from padir.analysis.report import Section
from padir.decoding.options import Decoding
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.evaluation import TestSet
from padir.ising.figures import check as check_matplotlib
from padir.refinement.strategies import parse_strategy
from padir.storage.files import atomic_file, write_json, write_text

Row = dict[str, Any]
Tell = Callable[[str], None]
_LABELS = {f"{kind}_avg": label for kind, label in pairs.LABELS.items()} | {"model": "the model's own"}
_SHOWN = ("self_avg", "positional_avg", "tv_avg", "cosine_avg", "model", "distance")


@dataclasses.dataclass(frozen=True)
class Options:
    """How much is analysed.

    Attributes:
      sentences: the first of the test set.
      examples: sentences that are shown.
      values, canvases, given: of dependency, see `padir.analysis.agreement`; given is "source" or "draft".
      strategies: of refinement; None: all that the model can run, at temperature 0, and the correctors where it knows a
        mask.
      passes: of refinement: numbers of steps that each strategy gets.
    """

    sentences: int = 200
    examples: int = 3
    values: int = 4
    canvases: int = 1
    given: str = "source"
    strategies: tuple[str, ...] | None = None
    passes: tuple[int, ...] = (1, 2, 4, 10)

    def __post_init__(self):
        if self.given not in ("source", "draft"):
            raise PadirError(f"given must be source or draft, got {self.given!r}")
        if min(self.passes, default=0) < 1 or self.examples < 0:
            raise PadirError(f"passes must be at least 1 and examples at least 0, got {self.passes}, {self.examples}")
        check_values(self.values)


@dataclasses.dataclass(frozen=True)
class Found:
    """What a subject gives: rows for CSV and the terminal, further figures, and the page's sections."""

    rows: list[Row]
    figures: dict[str, Any]
    sections: list[Section]


def run(
    subject: str,
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    options: Options,
    *,
    name: str = "",
    output: str | None = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Analyses, tells how it goes, and writes SUBJECT.json, .csv, .html and PNG files into a folder if given one.

    Args:
      decoding: num_steps is the pass whose attention is measured (attention, dependency), or the length of the run that
        is looked at step by step (refinement).
      name: of the model, for the page.

    Raises:
      PadirError: the subject is unknown, or the model or the sentences do not suit it.
    """
    if subject not in SUBJECTS:
        raise PadirError(f"no analysis is called {subject!r}: choose one of {', '.join(SUBJECTS)}")
    check_matplotlib()  # before the minutes of work, not after
    check_model(translator.card.config)
    test_set = first_sentences(test_set, options.sentences)
    found = SUBJECTS[subject](translator, test_set, decoding, options, tell)
    about = {
        "subject": subject,
        "model": name or translator.card.task,
        "task": test_set.task,
        "split": test_set.split,
        "sentences": len(test_set.sources),
        "num_steps": decoding.num_steps,
        "seed": decoding.seed,
    }
    result = _plain({**about, **found.figures, "rows": found.rows})
    if output:
        folder = Path(output)
        with atomic_file(folder / f"{subject}.csv") as file:
            columns = list(dict.fromkeys(column for row in found.rows for column in row))
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            table.writerows(result["rows"])
        for section in found.sections:
            for picture, data in section.pictures.items():
                with atomic_file(folder / f"{subject}_{picture.replace(' ', '_')}.png", binary=True) as file:
                    file.write(data)
        write_json(folder / f"{subject}.json", result)
        write_text(folder / f"{subject}.html", report.render(f"padir: {subject}", about, found.sections))
    return result


def _attention(translator: Translator, test_set: TestSet, decoding: Decoding, options: Options, tell: Tell) -> Found:
    rows: list[Row] = []
    sections, counts = [], {}
    for when in stutter.WHEN:
        found = stutter.neighbours(translator, test_set, decoding, step=decoding.num_steps, when=when)
        table = found.table()
        rows += [{"pass": when, **row} for row in table]
        count = int(found.stutter_P.sum())
        counts = {"neighbours": len(found.stutter_P), "stutter": count}
        tell(f"pass that {when} the draft: {count:,} of {len(found.stutter_P):,} neighbours stutter")
        shown = {
            pairs.LABELS[kind]: found.values[f"{kind}_avg"] for kind in pairs.KINDS if f"{kind}_avg" in found.values
        }
        pictures = {}
        if 1 < count < len(found.stutter_P) - 1:
            pictures[f"{when}"] = figures.png(figures.draw_groups, shown, found.stutter_P, ("stutter", "other"))
        sections.append(
            Section(
                f"Tables 4 and 5: the pass that {when} the draft",
                f"{count:,} of {len(found.stutter_P):,} pairs of neighbours hold the same token. Mean and standard"
                " deviation of each measure; auc is the probability that a stuttering pair has the higher value, auc"
                " within the same for pairs of one sentence, with 95 % intervals over sentences. Pictures: means over"
                " heads.",
                pictures,
                table,
            )
        )
    pictures = {}
    for number, (one, row, _) in enumerate(refinement.examples(translator, test_set, decoding, options.examples), 1):
        maps, words, source = _maps(translator, one, row)
        keys = {kind: source if kind == "cross" else words for kind in maps}
        pictures[f"maps {number}"] = figures.png(figures.draw_maps, maps, words, keys)
        if number == 1:
            pictures["heads"] = figures.png(figures.draw_heads, maps)
    text = "Rows look at columns. Positions are named by what the pass wrote there; it read the draft before."
    sections.append(Section("Attention maps", text, pictures))
    return Found(rows, counts, sections)


def _maps(translator: Translator, one: Pass, row: int) -> tuple[dict[str, Any], list[str], list[str]]:
    """The attention of the pass that wrote a sentence's draft, the draft's tokens, and the source's."""
    maps = stutter.attention_of(translator, one, "writes")
    length = int(one.length_B[row])
    source_L = one.batch.source_BS[row]
    # [LENGTH] and padding are no one's keys.
    there_S = np.asarray(jax.device_get(one.batch.encoded.segment_BS))[row] > 0
    attn = {"self": maps.own_RJHLL[row][..., :length, :length]}
    if maps.positional_RJHLL is not None:
        attn["positional"] = maps.positional_RJHLL[row][..., :length, :length]
    attn["cross"] = maps.cross_RJHLS[row][..., :length, :][..., there_S]
    return attn, pieces(translator, one.tokens_TBL[-1, row, :length]), pieces(translator, source_L[there_S])


def _dependency(translator: Translator, test_set: TestSet, decoding: Decoding, options: Options, tell: Tell) -> Found:
    known = test_set.task == refinement.TOY and options.given == "source"
    choose = agreement.with_truth if known else agreement.without_truth
    sentences = choose(translator, test_set)
    count = "1 sentence" if len(sentences) == 1 else f"{len(sentences):,} sentences"
    tell(count + (" with several right translations of one length" if known else ""))
    given_draft = options.given == "draft"
    found = agreement.agreement(
        translator,
        test_set,
        decoding,
        sentences,
        values=options.values,
        canvases=options.canvases,
        given_draft=given_draft,
    )
    rows, cycle = found.table(), found.model.cycle()
    measured = len(np.unique(found.sentence_P))
    coverage = float(found.model.coverage_P.mean())
    pictures = {}
    if found.truth_P is not None:
        curves = {}
        for group, there_P in found.among().items():
            label_P = found.truth_P[there_P] > agreement.DEPENDENT
            if 0 < label_P.sum() < len(label_P):
                scores = {name: found.score(name)[there_P] for name in _SHOWN if name in found.values}
                curves[group] = {
                    _LABELS.get(name, name): (*roc(score_P, label_P), auc(score_P, label_P))
                    for name, score_P in scores.items()
                }
        if curves:
            pictures["roc"] = figures.png(figures.draw_roc, curves)
    what = (
        f"{len(found.sentence_P):,} pairs of positions in {len(sentences):,} sentences. Dependent: true mutual"
        f" information above {agreement.DEPENDENT} nats, given source and length. Distances count with a minus sign, so"
        " that more always means more dependent; model: the model's own mutual information; distance: of the positions."
        if known
        else f"{len(found.sentence_P):,} pairs of positions in {len(sentences):,} sentences, given the {options.given}."
        " Nobody knows the truth here: correlations are with the model's own mutual information."
    )
    sections = [Section("Which measure finds dependent positions", what, pictures, rows)]
    shown = _example_matrices(translator, sentences, found, options)
    sections.append(
        Section(
            "Pairs of positions in a sentence",
            "Each picture on its own scale, bright: much. Similarity is 1 - total variation distance.",
            shown,
        )
    )
    usual_P = found.model.least_P >= 0.01
    pictures = {"cycle": figures.png(figures.draw_cycle, found.model.odds_P2[usual_P])} if usual_P.any() else {}
    sections.append(
        Section(
            "Cycle test",
            "The log odds ratio of two positions by the first one's conditionals and by the second's, for values of at"
            " least 1 % each. Conditionals of a joint distribution would put every pair on the line.",
            pictures,
            [cycle],
        )
    )
    tell(f"cycle test: {report.cell(cycle)}; coverage of the values tried {coverage:.3f}")
    about = {"measured": measured, "canvases": options.canvases, "values": options.values, "given": options.given}
    return Found(rows, {**about, "cycle": cycle, "coverage": coverage}, sections)


def _example_matrices(
    translator: Translator, sentences: Sequence[agreement.Sentence], found: agreement.Agreement, options: Options
) -> dict[str, bytes]:
    """Truth, model and attention of the sentences with the most dependency (by the model, where there is no truth)."""
    target_P = found.values[agreement.MODEL] if found.truth_P is None else found.truth_P
    several = [s for s in sentences if s.length > 2]
    short = [s for s in several if s.length <= refinement.MOST_TOKENS] or several
    best = sorted(short, key=lambda s: -target_P[found.sentence_P == s.number].sum())[: options.examples]
    pictures = {}
    for number, sentence in enumerate(best, 1):
        there_P = found.sentence_P == sentence.number
        size = sentence.length - 1
        i_P, j_P = pairs.every(size).T

        def square(value_P, size=size, i_P=i_P, j_P=j_P):
            value_LL = np.zeros((size, size))
            value_LL[i_P, j_P] = value_LL[j_P, i_P] = value_P
            return value_LL

        matrices = {} if found.truth_P is None else {"true mutual information": square(found.truth_P[there_P])}
        matrices["the model's"] = square(found.values[agreement.MODEL][there_P])
        matrices["similarity of cross-attention"] = square(1 - found.values["tv_avg"][there_P])
        matrices["self-attention"] = square(found.values["self_avg"][there_P])
        joint = sentence.joint
        tokens_L = found.drafts[sentence.number] if joint is None else joint.tokens_KL[joint.prob_K.argmax()]
        words = pieces(translator, tokens_L)
        pictures[f"pairs {number}"] = figures.png(figures.draw_matrices, matrices, words)
    return pictures


def _refinement(translator: Translator, test_set: TestSet, decoding: Decoding, options: Options, tell: Tell) -> Found:
    names, refused = refinement.runnable(translator, decoding)
    if options.strategies is not None:
        chosen, refused = list(options.strategies), {}
    else:
        correctors = refinement.CORRECTORS if "independent_parallel:temperature=0.0" in names else ()
        chosen = list(dict.fromkeys([*names, *correctors]))
    # A name that is wrong is told before the minutes of work.
    decodings = {name: refinement.with_strategy(translator, decoding, parse_strategy(name)) for name in chosen}
    for name, why in refused.items():
        tell(f"left out: {why if why.startswith(name) else f'{name}: {why}'}")
    steps = refinement.steps(translator, test_set, decoding)
    by_step: list[Row] = [{"step": number, **step.row()} for number, step in enumerate(steps, 1)]
    for row in by_step:
        tell(report.cell(row))
    shown = {1, 2, 4, 8, len(steps)}  # more curves than these hide each other
    curves = {f"step {n}": step.reliability for n, step in enumerate(steps, 1) if step.reliability and n in shown}
    errors = [float("nan") if step.reliability is None else step.reliability.error for step in steps]
    pictures = {
        "steps": figures.png(figures.draw_steps, [s.changed for s in steps], [s.settled for s in steps], errors)
    }
    if curves:
        pictures["reliability"] = figures.png(figures.draw_reliability, curves)
    sections = [
        Section(
            "Step by step",
            "Every sentence at its reference's length; shares of 1. changed: tokens that a step changed; settled:"
            " sentences in which it changed none; accuracy: written tokens that are the reference's, confidence: how"
            " probable the model took them to be when it wrote them; equal: sentences that are the reference by then;"
            " right, mixed: those that are right translations, or mixtures of them.",
            pictures,
            by_step,
        )
    ]
    drafts = []
    for one, row, _ in refinement.examples(translator, test_set, decoding, options.examples):
        size = int(one.length_B[row]) - 1
        tokens_TL, prob_TL = one.tokens_TBL[:, row, :size], np.exp(one.score_TBL[:, row, :size])
        last = int(one.passes_B[row]) + 1
        changed_TL = np.concatenate([np.zeros((1, size), bool), tokens_TL[1:] != tokens_TL[:-1]])
        prob_TL = np.where(np.arange(len(prob_TL))[:, None] == 0, np.nan, prob_TL)
        words = [pieces(translator, tokens_L) for tokens_L in tokens_TL[:last]]
        drafts.append((words, prob_TL[:last], changed_TL[:last]))
    if drafts:
        picture = {"heat": figures.png(figures.draw_refinement, drafts)}
        sections.append(Section("Drafts", "Sentences that took the most steps, from noise to the end.", picture))
    each: list[Row] = []
    for name, one in decodings.items():
        counted = enumerate(refinement.steps(translator, test_set, one), 1)
        each += [{"strategy": name, "step": number, **step.row()} for number, step in counted]
        tell(report.cell(each[-1]))
    labels = {"changed": "tokens that change", "calibration_error": "expected calibration error"}
    labels |= {"right": "right translations", "mixed": "mixtures of right ones"} if "right" in each[0] else {}
    labels |= {"equal": "equal to the reference"} if "right" not in each[0] else {}
    sections.append(
        Section(
            f"Every strategy, step by step, when it has {decoding.num_steps} steps",
            "As above. A strategy that hides tokens between steps has few whole sentences before its last.",
            {"strategies by step": figures.png(figures.draw_outcomes, each, labels, "step")},
            each,
        )
    )
    rows = refinement.outcomes(
        translator, test_set, decoding, chosen, options.passes, lambda row: tell(report.cell(row))
    )
    labels = {
        "toy_right": "right translations, %",
        "toy_mixed": "mixtures of right ones, %",
        "exact_match": "equal to the reference, %",
        "bleu": "BLEU",
    }
    labels = {key: label for key, label in labels.items() if key in rows[0]}
    labels = dict(list(labels.items())[:3])
    sections.append(
        Section(
            "Every strategy",
            "Translations at the likeliest length, decoded anew for each number of passes.",
            {"strategies": figures.png(figures.draw_outcomes, rows, labels)},
            rows,
        )
    )
    return Found(rows, {"by_step": by_step, "strategies_by_step": each, "refused": dict(refused)}, sections)


SUBJECTS = {"attention": _attention, "dependency": _dependency, "refinement": _refinement}
COLUMNS = {
    "attention": ("pass", "measure", "stutter_mean", "stutter_sd", "other_mean", "other_sd", "auc", "auc_within"),
    "dependency": ("pairs", "measure", "number", "dependent", "pearson", "spearman", "auc", "auc_within"),
    "refinement": ("strategy", "steps", *refinement.FIGURES),
}


def _plain(figures: Any) -> Any:
    """Figures as JSON can hold them: what is undefined, such as the correlation with a constant, is None."""
    if isinstance(figures, dict):
        return {name: _plain(value) for name, value in figures.items()}
    if isinstance(figures, list | tuple):
        return [_plain(value) for value in figures]
    return None if isinstance(figures, float) and figures != figures else figures


def cells(subject: str, row: Row) -> list[str]:
    """A row's figures as the terminal's table shows them."""
    return [report.cell(row.get(name)) for name in COLUMNS[subject]]
