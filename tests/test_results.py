"""The tables within pages are those that scripts make of results/*.json."""

import runpy
from pathlib import Path

import pytest
from support.refusals import refuses

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "fill_tables.py"


def test_the_tables_of_the_pages_are_those_of_the_results(monkeypatch):
    if not SCRIPT.exists():
        pytest.skip("needs a checkout with scripts/")
    monkeypatch.syspath_prepend(SCRIPT.parent)  # it imports other scripts
    fill = runpy.run_path(str(SCRIPT))
    old = [page.name for page in fill["pages"]() if fill["filled"](page.read_text()) != page.read_text()]
    assert old == [], "run python scripts/fill_tables.py"


def test_a_table_does_not_mix_teachers_machines_or_test_sets(monkeypatch, tmp_path):
    if not SCRIPT.exists():
        pytest.skip("needs a checkout with scripts/")
    monkeypatch.syspath_prepend(SCRIPT.parent)
    results, speed = (runpy.run_path(str(SCRIPT.with_name(name))) for name in ("result_tables.py", "speed_table.py"))
    lines = [{"teacher": teacher, "commit": "a", "machine": "m"} for teacher in ("one", "two")]
    results["check_sources"](["name", "teacher"], lines)
    refuses(lambda: results["check_sources"](["name"], lines), "differ in teacher", error=SystemExit)
    for name, processor in (("training_multi30k_de_en", "A"), ("training_wmt_dev_de_en", "B")):
        (tmp_path / f"speed_{name}.json").write_text(f'{{"environment": {{"processor": "{processor}"}}}}')
    refuses(lambda: speed["training"](tmp_path), "several machines: A, B", error=SystemExit)
    monkeypatch.setitem(results["evaluation"].__globals__, "load", lambda _: [{"sha256": "a"}, {"sha256": "b"}])
    refuses(lambda: results["evaluation"]("mine"), "several test sets", error=SystemExit)
