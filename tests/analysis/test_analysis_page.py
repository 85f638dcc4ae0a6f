"""Tables of docs/analysis.md and docs/findings.md are made of the committed JSON, and their pictures are there."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "docs" / name for name in ("analysis.md", "findings.md")]


@pytest.fixture(scope="module")
def script():
    path = ROOT / "scripts" / "analysis_tables.py"
    if not path.exists() or not all(page.exists() for page in PAGES):
        pytest.skip("needs a checkout with scripts/ and docs/")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)  # it imports another script
        return runpy.run_path(str(path))


def test_the_tables_are_those_of_the_committed_figures(script):
    pages = [page.read_text() for page in PAGES]
    marked = [name for page in pages for _, name, _ in script["MARK"].findall(page)]
    assert sorted(marked) == sorted(script["TABLES"])
    assert sorted(marked) == sorted(set(re.findall(r"analysis_tables\.py (\w+)", "".join(pages))))
    for page in pages:
        assert script["filled"](page) == page, "run python scripts/analysis_tables.py --write"


def test_a_number_that_was_edited_is_noticed(script):
    """In each table, its last figure."""
    for page in (page.read_text() for page in PAGES):
        for _, name, table in script["MARK"].findall(page):
            digit = list(re.finditer(r"\d", table))[-1]
            forged = table[: digit.start()] + str((int(digit[0]) + 1) % 10) + table[digit.end() :]
            assert page.count(table) == 1, name
            assert script["filled"](page.replace(table, forged)) == page, name


def test_every_picture_and_file_that_is_named_is_there():
    text = "".join(page.read_text() for page in PAGES)
    named = re.findall(r"\]\((analysis/[^)]+)\)", text) + re.findall(r"docs/(analysis/[\w./]+\.(?:json|de|en))", text)
    assert named
    for name in named:
        assert (ROOT / "docs" / name).is_file(), name
