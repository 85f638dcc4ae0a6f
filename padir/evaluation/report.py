"""Files and terminal output of `padir evaluate`; the files share the beginning of their names.

x.md          the whole table, the weights that each model used (such as "of step 1,000"), length recalls, signatures
x.csv         the same metrics with all their digits
x.json        the rows, with settings and signatures; `padir tables` reads it
x.png         BLEU, chrF and passes by source length, if matplotlib is installed
x.rows/       reference.txt, and the hypotheses of each row: 01.txt, 02.txt, ... for `padir compare`
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from padir.errors import PadirError
from padir.evaluation.columns import Rows, label
from padir.evaluation.curves import Bucket, by_length, plot
from padir.evaluation.rows import describe_row
from padir.evaluation.systems import Row
from padir.evaluation.tables import cells, facts, signatures, to_csv, to_markdown
from padir.evaluation.test_set import TestSet
from padir.reporting import tables
from padir.storage.files import write_json, write_text

MAX_CURVES = 10  # maximum number of curves in a picture; more could not be told apart


def show(rows: Sequence[Row], test_set: TestSet, warn: Callable[[str], None]) -> Rows:
    """Print the table and its signatures, and return the rows as JSON."""
    described = [describe_row(row, test_set) for row in rows]
    models = ", ".join(dict.fromkeys(row.model for row in rows))
    tables.show(f"{models} on {len(test_set.sources):,} sentences", *cells(described))
    for line in (*facts(described), *signatures(described)):
        print(line)
    truncated = {
        row.model: int(row.evaluation.metrics["truncated"])
        for row in rows
        if row.evaluation and not row.oracle_lengths  # with oracle lengths the number includes cut references
    }
    for model, count in truncated.items():
        if count:
            warn(f"{count} sentences are longer than {model} takes and were cut")
    return described


def write(
    output: str | Path,
    rows: Sequence[Row],
    test_set: TestSet,
    described: Rows,
    warn: Callable[[str], None],
    skipped: Sequence[str] = (),
) -> None:
    """Write all files of an evaluation.

    Args:
      output: beginning of the files' names.
      described: the rows as JSON, from `show`; the metrics by source length are added to them.
      warn: called with a message if the curves cannot be drawn.
      skipped: metrics that could not be computed, and why.
    """
    for stale in Path(f"{output}.rows").glob("[0-9]*.txt"):  # hypotheses of an earlier table
        stale.unlink()
    curves: dict[str, list[Bucket]] = {}
    for i, (row, entry) in enumerate(zip(rows, described, strict=True), 1):
        if row.evaluation:
            buckets = by_length(test_set, row.evaluation)
            entry["by_length"] = [dataclasses.asdict(bucket) for bucket in buckets]
            curves[f"{i:02d} {label(entry, described)}"] = buckets
            write_text(f"{output}.rows/{i:02d}.txt", "".join(line + "\n" for line in row.evaluation.hypotheses))
    write_text(f"{output}.rows/reference.txt", "".join(line + "\n" for line in test_set.references))
    write_text(f"{output}.md", to_markdown(described, skipped))
    write_text(f"{output}.csv", to_csv(described))
    write_json(f"{output}.json", described)
    if len(curves) > MAX_CURVES:
        warn(f"{output}.png shows the first {MAX_CURVES} of {len(curves)} rows; the JSON has all")
    try:
        drawn = dict(list(curves.items())[:MAX_CURVES])
        plot(drawn, f"{output}.png", f"{test_set.task}, {len(test_set.sources):,} sentences")
    except PadirError as error:
        warn(f"no {output}.png: {error}")
