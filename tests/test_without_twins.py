"""scripts/without_twins.py: which test pairs have a near twin in the training text."""

import difflib
import gzip
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
from support.refusals import refuses

SCRIPT = Path(__file__).parents[1] / "scripts" / "without_twins.py"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs the script in a folder."""
    monkeypatch.chdir(tmp_path)

    def run(options):
        monkeypatch.setattr(sys, "argv", [SCRIPT.name, *options.split(), "--output", "kept"])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return run


def test_pairs_without_a_twin_on_either_side_are_written_in_their_order(tmp_path, run, capsys):
    (tmp_path / "train.de").write_text("Der Hund schläft.\nEs regnet heute sehr stark\n")
    (tmp_path / "train.en").write_text("A dog is sleeping.\nIt is raining heavily\n")
    with gzip.open(tmp_path / "test.de.gz", "wt") as file:
        file.write("Ganz anders!\nDer hund schläft!\nHeute gießt es.\nWas?\n")
    (tmp_path / "test.en").write_text("Quite different!\nThe tired animal rests!\nit is raining heavily!\nWhat?\n")
    run("--train train.de train.en --test test.de.gz test.en")
    counts = "4 pairs, 3 without a twin of the source, 2 also without a twin of the target\n"
    assert capsys.readouterr().out == counts
    assert (tmp_path / "kept.de").read_text() == "Ganz anders!\nWas?\n"
    assert (tmp_path / "kept.en").read_text() == "Quite different!\nWhat?\n"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--train train.de --test test.de.gz test.en", "a file of targets for each file of sources, got 1 files"),
        ("--train train.de train.en --test de.txt en.txt", "must have two endings, got de.txt and en.txt"),
    ],
)
def test_wrong_files_are_refused(run, capsys, options, words):
    refuses(run, "2", options, error=SystemExit)
    assert words in capsys.readouterr().err


def test_the_bound_leaves_no_twin_out():
    rng = np.random.RandomState(0)
    lines = ["".join(rng.choice(list("abc "), rng.randint(0, 9))) for _ in range(60)]
    train, test = lines[:30], lines[30:]
    twins = runpy.run_path(str(SCRIPT))["Twins"](train, 0.8)
    expected = [
        any(difflib.SequenceMatcher(None, one, line, autojunk=False).ratio() >= 0.8 for one in train) for line in test
    ]
    assert [twins.has(line) for line in test] == expected and 5 < sum(expected) < 25
