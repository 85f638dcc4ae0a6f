"""Pages of results/ that scripts make of the JSON beside them: the board of tries, and the everyday sentences."""

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def script(name, monkeypatch):
    path = ROOT / "scripts" / f"{name}.py"
    if not path.exists():
        pytest.skip("needs a checkout with scripts/")
    monkeypatch.syspath_prepend(path.parent)  # it imports another script
    return runpy.run_path(str(path))


def test_the_board_is_that_of_the_committed_scores(monkeypatch):
    speedrun = script("speedrun", monkeypatch)
    rows = json.loads((RESULTS / "speedrun.json").read_text())
    assert (RESULTS / "speedrun.md").read_text() == speedrun["page"](rows)
    for name, row in rows.items():
        each = speedrun["tried"](name)
        assert (row["what"], row["steps"], row["minutes"]) == (each.what, each.steps, each.minutes), name


def test_a_tries_name_may_end_in_what_it_changes(monkeypatch):
    tried = script("speedrun", monkeypatch)["tried"]
    assert tried("raw").from_teacher and not tried("raw_nothing").from_teacher
    assert tried("raw_other").bindings == ("train.seed=1",) and tried("raw_other").what.endswith(", seed 1")
    assert tried("stages_1") and not tried("stages_4") and not tried("raw_else")


def test_the_counts_of_everyday_sentences_are_those_of_the_readers_sheets(monkeypatch):
    everyday = script("everyday", monkeypatch)
    sheets = [everyday["marks"](RESULTS / f"everyday_reader{number}.tsv") for number in (1, 2)]
    outputs = json.loads((RESULTS / "everyday.json").read_text(encoding="utf-8"))
    page = everyday["page"](everyday["lines"](RESULTS / "everyday_de.txt"), outputs, *sheets)
    assert (RESULTS / "everyday.md").read_text(encoding="utf-8") == page
