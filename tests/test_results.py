"""The tables within pages are those that scripts make of results/*.json."""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "fill_tables.py"


def test_the_tables_of_the_pages_are_those_of_the_results(monkeypatch):
    if not SCRIPT.exists():
        pytest.skip("needs a checkout with scripts/")
    monkeypatch.syspath_prepend(SCRIPT.parent)  # it imports other scripts
    fill = runpy.run_path(str(SCRIPT))
    old = [page.name for page in fill["pages"]() if fill["filled"](page.read_text()) != page.read_text()]
    assert old == [], "run python scripts/fill_tables.py"
