"""Numbers that the README shows are those of committed results."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_table_of_speed_is_what_the_script_prints():
    if not (ROOT / "scripts" / "speed_table.py").exists():
        pytest.skip("needs a checkout with scripts/")
    table = runpy.run_path(str(ROOT / "scripts" / "speed_table.py"))["table"]
    _, after = (ROOT / "README.md").read_text().split("<!-- scripts/speed_table.py -->\n\n")
    assert after.startswith(table() + "\n"), "run scripts/speed_table.py and put what it prints into the README"
