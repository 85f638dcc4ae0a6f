"""Runs a subject of `padir analyse` and writes its metrics, pictures and page."""

from __future__ import annotations

from typing import Any

from padir import checks
from padir.decoding.options import Decoding
from padir.evaluation import TestSet
from padir.reporting.page import cell
from padir.reporting.tables import require_matplotlib
from padir.studies.analysis import attention, refining
from padir.studies.analysis.study import AnalysisOptions, Row, Tell, check_model, first_sentences, written
from padir.translator import Translator

SUBJECTS = {"attention": attention, "refinement": refining}
COLUMNS = {name: subject.COLUMNS for name, subject in SUBJECTS.items()}

# The subjects that read an option of the command line or a setting; the others refuse it.
READ_BY = {
    "strategies": ("refinement",),
    "passes": ("refinement",),
    **dict.fromkeys(("length_window", "length_min_p", "num_drafts", "rerank", "length_normalization"), ("refinement",)),
}


def run(
    subject: str,
    translator: Translator,
    test_set: TestSet,
    decoding: Decoding,
    options: AnalysisOptions,
    *,
    name: str = "",
    output: str | None = None,
    tell: Tell = print,
) -> dict[str, Any]:
    """Analyses a model and writes SUBJECT.json, .html and PNG files into a folder if one is given.

    Args:
      subject: "attention" or "refinement".
      decoding: `num_steps` is the pass whose attention is measured (attention), or the number of steps of the
        decoding run that is measured (refinement).
      name: the model's name on the page.
      output: the folder.
      tell: receives lines of progress.

    Returns:
      The content of SUBJECT.json: facts about the run, metrics and "rows".

    Raises:
      PadirError: the subject is unknown, matplotlib is missing, the sentences are of other languages than the model's,
        or the model or the sentences do not suit the subject.
    """
    checks.one_of(SUBJECTS, subject=subject)
    require_matplotlib()
    check_model(translator.card.config)
    card = translator.card
    test_set.check_languages(card.source_language, card.target_language, name or "the model")
    test_set = first_sentences(test_set, options.sentences)
    findings = SUBJECTS[subject].analyse(translator, test_set, decoding, options, tell)
    about = {
        "subject": subject,
        "model": name or translator.card.task,
        "task": test_set.task,
        "split": test_set.split,
        "sentences": len(test_set.sources),
        "num_steps": decoding.num_steps,
        "seed": decoding.seed,
    }
    return written(about, findings, output)


def cells(subject: str, row: Row) -> list[str]:
    """The cells of a row in the terminal's table, one for each of `COLUMNS[subject]`."""
    return [cell(row.get(name)) for name in COLUMNS[subject]]
