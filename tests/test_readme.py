"""The front page: its length, its numbers, its example and those of the concepts page."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


def test_the_readme_stays_under_120_lines():
    assert len(README.read_text().splitlines()) < 120


def test_the_table_of_results_is_what_the_script_prints():
    script = ROOT / "scripts" / "result_tables.py"
    if not script.exists():
        pytest.skip("needs a checkout with scripts/")
    _, after = README.read_text().split("<!-- python scripts/result_tables.py -->\n\n")
    assert after.startswith(runpy.run_path(str(script))["readme"]() + "\n\n"), "run it, and put its table there"


def test_the_times_in_the_text_are_those_of_the_table_of_speed():
    script = ROOT / "scripts" / "speed_table.py"
    if not script.exists():
        pytest.skip("needs a checkout with scripts/")
    times = [int(time.replace(",", "")) for time in re.findall(r"([\d,]+) ms", README.read_text())]
    rows = runpy.run_path(str(script))["table"]()
    assert f"| {times[0]} ms | own AR, greedy | {times[1]} ms |" in rows
    assert f"| 30 tokens, batch of 32 | {times[2]} ms | own AR, greedy | {times[3]} ms |" in rows


def python_block(page: Path) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return code


def test_the_loop_of_the_concepts_page_prints_what_it_says(capsys):
    page = ROOT / "docs" / "concepts.md"
    if not page.exists():
        pytest.skip("needs a checkout with docs/")
    exec(compile(python_block(page), str(page), "exec"), {})
    assert capsys.readouterr().out == "[[7 8 9 1]] [2]\n"


@pytest.mark.slow
def test_the_library_example_translates(capsys):
    exec(compile(python_block(README), str(README), "exec"), {})
    assert capsys.readouterr().out.startswith("I'm hungry.")
