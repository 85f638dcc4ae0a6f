"""The front page: its length, its numbers, its files and its examples."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


def test_the_readme_stays_under_120_lines():
    assert len(README.read_text().splitlines()) < 120


def test_the_times_in_the_text_are_those_of_the_table_of_speed():
    script = ROOT / "scripts" / "speed_table.py"
    if not script.exists():
        pytest.skip("needs a checkout with scripts/")
    times = [int(time.replace(",", "")) for time in re.findall(r"([\d,]+) ms", README.read_text())]
    rows = runpy.run_path(str(script))["table"]()
    assert f"| {times[0]} ms | own AR, greedy | {times[1]} ms |" in rows
    assert f"| 30 tokens, batch of 32 | {times[2]} ms | own AR, greedy | {times[3]} ms |" in rows
    assert f"| 30 tokens, 5 hypotheses | {times[4]} ms |" in rows


def test_the_files_of_the_paper_exist():
    listed = re.findall(r"^    ((?:padir|examples)/\S+\.py)", README.read_text(), re.MULTILINE)
    assert len(listed) == 15
    page = ROOT / "docs" / "architecture.md"
    assert not page.exists() or all(f"    {name} " in page.read_text() for name in listed)
    assert [name for name in listed if not (ROOT / name).exists()] == []


def python_blocks():
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)


def test_the_loop_prints_what_it_says(capsys):
    exec(compile(python_blocks()[1], str(README), "exec"), {})
    assert capsys.readouterr().out == "[[7 8 9 1]] [2]\n"


@pytest.mark.slow
def test_the_library_example_translates(capsys):
    exec(compile(python_blocks()[0], str(README), "exec"), {})
    assert capsys.readouterr().out.startswith("I'm hungry.")
