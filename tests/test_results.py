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


def test_numbers_of_the_pages_are_made_from_files_or_say_why_not(tmp_path, monkeypatch):
    if not SCRIPT.exists():
        pytest.skip("needs a checkout with scripts/")
    check = runpy.run_path(str(SCRIPT.with_name("check_numbers.py")))
    assert [line for page in check["pages"]() for line in check["unfilled"](page)] == []
    monkeypatch.setitem(check["unfilled"].__globals__, "ROOT", tmp_path)
    own = "| a | b |\n| --- | ---: |\n| x | 1 |\n"
    (tmp_path / "README.md").write_text(
        "It has 48.7 BLEU.\n\n<!-- no file: a guess -->\nIt takes 5 s.\n\nPython 3.11, 95 % intervals, 7 lengths.\n\n"
        f"{own}\n<!-- table: mine -->\n\n{own}\n<!-- end -->\n\n7 ms"
    )
    found = [line.split(":")[1] for line in check["unfilled"]("README.md")]
    assert found == ["1", "8", "20"]


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


def test_the_ends_of_a_budget_and_of_a_load(monkeypatch):
    """A run of 60 core-minutes belongs to its column; a load with a refused request was not held."""
    if not SCRIPT.exists():
        pytest.skip("needs a checkout with scripts/")
    for package in ("httpx", "prometheus_client"):
        pytest.importorskip(package)
    monkeypatch.syspath_prepend(SCRIPT.parent)
    results, load = (runpy.run_path(str(SCRIPT.with_name(name))) for name in ("result_tables.py", "load_test.py"))
    run = {"start": "nothing", "core_minutes": 60, "what": "mine", "rows": [{"bleu": 9.0, "steps": 4}]}
    run |= dict.fromkeys(results["SOURCES"], "known")
    monkeypatch.setitem(results["board"].__globals__, "tries", lambda: {"mine": run})
    assert "| 60 | random | mine | 60 | 9.0 |" in results["board"]()
    row = {"statuses": {"200": 9}, "p99_ms": 1_000.0}
    assert load["held"](row, 1.0) and not load["held"](row, 0.9)
    assert not load["held"](row | {"statuses": {"200": 9, "429": 1}}, 1.0)
