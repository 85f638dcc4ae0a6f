"""Lists measured numbers of the pages that no script fills in from a file.

    python scripts/check_numbers.py

`fill_tables.py` makes tables and sentences of files that commands wrote. This script lists all other tables with a
column of numbers (`---:`), and in README.md and docs/results.md all other paragraphs with a measurement: a number with
a decimal point, or before BLEU, ms, s or %. A mark before a table or paragraph says why its numbers have no file:

    <!-- no file: published sizes -->

Exits with 1 if a number has neither.
"""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROSE = ("README.md", "docs/results.md")
REASON = re.compile(r"<!-- no file: .+ -->")
MEASURED = re.compile(r"\d\.\d|\d (?:BLEU|chrF|ms|s|%)(?!\w)")
NO_RESULT = re.compile(
    r"`[^`]*`|\]\([^)]*\)"  # code and addresses
    r"|95 % intervals?|\(95 %\)|section \d\.\d|L\.\d"  # of the statistics, and of the paper
    r"|\b3\.1[1-4]\b|Apache License [\d.]+|[\d.]+M\b"  # versions, and numbers of parameters
)
_NO_TEXT = ("```", "<!--", "    ", "#", "![", "<img")


def blocks(text: str) -> Iterator[tuple[int, list[str], bool]]:
    """Each paragraph and table that nothing fills in: number of its first line, lines, and whether it has a reason."""
    lines: list[str] = []
    first = 0
    filled = fenced = excused = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fenced ^= line.lstrip().startswith("```")
        filled = line.startswith("<!-- table:") or (filled and not line.startswith("<!-- end"))
        if REASON.match(line):
            excused = True
        elif (
            line.strip() and not (fenced or filled) and not line.startswith(("```", "<!--", "    ", "#", "![", "<img"))
        ):
            first = first or number
            lines.append(line)
        elif lines:
            yield first, lines, excused
            excused, lines, first = False, [], 0


def unfilled(page: str) -> list[str]:
    """The paragraphs and tables of a page whose numbers have neither a file nor a reason, a line for each."""
    found = []
    for first, lines, excused in blocks((ROOT / page).read_text()):
        if lines[0].startswith("|"):
            measured = "-:" in lines[1]
        else:
            measured = page in PROSE and bool(MEASURED.search(NO_RESULT.sub("", " ".join(lines))))
        if measured and not excused:
            found.append(f"{page}:{first}: {lines[0][:80]}")
    return found


def pages() -> list[str]:
    """The pages that are checked."""
    return ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    found = [line for page in pages() for line in unfilled(page)]
    raise SystemExit("\n".join(found) if found else 0)
