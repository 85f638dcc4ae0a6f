"""What `padir evaluate` leaves behind: a table on the terminal, and files that begin with one name.

x.md          the whole table, which weights, the length recalls and the signatures
x.csv         the same figures with all their digits
x.json        the rows, with settings and signatures; `padir tables` reads it
x.png         BLEU, chrF and passes by source length, where matplotlib is installed
x.rows/       reference.txt, and what each row wrote: 01.txt, 02.txt, ... for `padir compare`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from padir.errors import PadirError
from padir.evaluation import tables
from padir.evaluation.curves import by_length, plot
from padir.evaluation.evaluate import TestSet
from padir.evaluation.systems import Row
from padir.storage.files import write_json, write_text

MAX_CURVES = 10  # more lines than that nobody tells apart


def show(rows: Sequence[Row], test_set: TestSet, warn: Callable[[str], None]) -> tables.Rows:
    """Prints the table and its signatures; returns the rows as JSON."""
    described = [tables.describe_row(row, test_set) for row in rows]
    columns, lines = tables.cells(described)
    models = ", ".join(dict.fromkeys(row.model for row in rows))
    tables.show(f"{models} on {len(test_set.sources):,} sentences", columns, lines)
    for line in (*tables.facts(described), *tables.signatures(described)):
        print(line)
    truncated = {
        row.model: int(row.evaluation.figures["truncated"])
        for row in rows
        if row.evaluation and not row.oracle_lengths  # there cut references count, too
    }
    for model, count in truncated.items():
        if count:
            warn(f"{count} sentences are longer than {model} takes and were cut")
    return described


def write(
    output: str | Path,
    rows: Sequence[Row],
    test_set: TestSet,
    described: tables.Rows,
    warn: Callable[[str], None],
    skipped: Sequence[str] = (),
) -> None:
    """Writes the files.

    Args:
      output: what their names begin with.
      described: the rows as JSON, from `show`.
      warn: told what could not be drawn.
      skipped: metrics that could not be computed, and why.
    """
    output = Path(output)
    for stale in Path(_beside(output, ".rows")).glob("[0-9]*.txt"):  # of an earlier table
        stale.unlink()
    measured = [
        (i, row.evaluation, entry)
        for i, (row, entry) in enumerate(zip(rows, described, strict=True), 1)
        if row.evaluation
    ]
    curves = {}
    for i, evaluation, entry in measured:
        buckets = by_length(test_set, evaluation)
        entry["by_length"] = [dataclasses.asdict(bucket) for bucket in buckets]
        curves[f"{i:02d} {tables.label(entry, described)}"] = buckets
        write_text(_beside(output, f".rows/{i:02d}.txt"), "".join(line + "\n" for line in evaluation.hypotheses))
    write_text(_beside(output, ".rows/reference.txt"), "".join(line + "\n" for line in test_set.references))
    write_text(_beside(output, ".md"), tables.to_markdown(described, skipped))
    write_text(_beside(output, ".csv"), tables.to_csv(described))
    write_json(_beside(output, ".json"), described)
    if len(curves) > MAX_CURVES:
        warn(f"{_beside(output, '.png')} shows the first {MAX_CURVES} of {len(curves)} rows; the JSON has all")
    try:
        drawn = dict(list(curves.items())[:MAX_CURVES])
        plot(drawn, _beside(output, ".png"), f"{test_set.task}, {len(test_set.sources):,} sentences")
    except PadirError as error:
        warn(f"no {_beside(output, '.png')}: {error}")


def _beside(output: Path, suffix: str) -> str:
    return f"{output}{suffix}"
