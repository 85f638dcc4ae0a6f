"""Files and terminal output of `padir evaluate`, and tables of systems in the layout of the paper's Tables 1 to 3.

The files share the beginning of their names:

x.md          the whole table, the weights that each model used (such as "of step 1,000"), length recalls, signatures
x.csv         the same metrics with all their digits
x.json        the rows, with settings and signatures; `padir tables` reads it
x.png         BLEU, chrF and passes by source length, if matplotlib is installed
x.rows/       reference.txt, and the hypotheses of each row: 01.txt, 02.txt, ... for `padir compare`
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from padir.errors import PadirError
from padir.evaluation.evaluation import Evaluation, TestSet
from padir.evaluation.rows import SYSTEM, RowDict, Rows, cell, describe_row, label, steps, system_columns, test_set_name
from padir.evaluation.systems import Row
from padir.metrics.scores import bleu_metric, chrf, count_words
from padir.reporting import tables
from padir.reporting.tables import markdown, require_matplotlib
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
        warn(f"{output}.png was not written: {error}")


@dataclasses.dataclass(frozen=True)
class Bucket:
    """Metrics of the sentences whose sources have `first` to `last` words.

    Attributes:
      first, last: words of the shortest and of the longest source.
      sentences: number of sentences.
      bleu, chrf: scores of these sentences.
      passes: mean number of decoder passes per sentence.
    """

    first: int
    last: int
    sentences: int
    bleu: float
    chrf: float
    passes: float

    @property
    def label(self) -> str:
        """Range of words, such as "1–3"."""
        return str(self.first) if self.first == self.last else f"{self.first}–{self.last}"


def edges(lengths: Sequence[int], count: int = 6) -> list[tuple[int, int]]:
    """Divide lengths into at most `count` ranges with about as many sentences each, shortest first.

    >>> edges([1, 1, 2, 2, 3, 9], count=3)
    [(1, 1), (2, 2), (3, 9)]
    """
    ordered = sorted(lengths)
    cuts = sorted({ordered[i * len(ordered) // count] for i in range(1, count)} - {ordered[0]})
    firsts = [ordered[0], *cuts]
    return list(zip(firsts, [*(cut - 1 for cut in cuts), ordered[-1]], strict=True))


def by_length(test_set: TestSet, evaluation: Evaluation, count: int = 6) -> list[Bucket]:
    """Compute metrics for each range of source lengths, counted in words (in Chinese and Japanese in characters)."""
    lengths = [count_words(source, test_set.source_language) for source in test_set.sources]
    metric = bleu_metric(test_set.target_language, test_set.tokenize)
    buckets = []
    for first, last in edges(lengths, count):
        numbers = [i for i, length in enumerate(lengths) if first <= length <= last]
        hypotheses = [evaluation.hypotheses[i] for i in numbers]
        references = [test_set.references[i] for i in numbers]
        bleu = metric.corpus_score(hypotheses, [references]).score
        passes = sum(evaluation.passes[i] for i in numbers) / len(numbers)
        buckets.append(Bucket(first, last, len(numbers), bleu, chrf(hypotheses, references).value, passes))
    return buckets


def plot(curves: Mapping[str, Sequence[Bucket]], path: str | Path, title: str = "") -> None:
    """Plot BLEU, chrF and passes by source length, one line a system, as a PNG."""
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4.2 + 0.22 * len(curves)), layout="constrained")
    panels = figure.subplots(1, 3)
    shown = ("bleu", "BLEU"), ("chrf", "chrF"), ("passes", "decoder passes")
    for axes, (name, title_of) in zip(panels, shown, strict=True):
        for i, (system, buckets) in enumerate(curves.items()):
            values = [getattr(bucket, name) for bucket in buckets]
            axes.plot(range(len(buckets)), values, marker="os^Dv"[i % 5], label=system)
        buckets = next(iter(curves.values()))
        axes.set_xticks(range(len(buckets)), [f"{b.label}\n({b.sentences})" for b in buckets])
        axes.set_xlabel("source words (sentences)")
        axes.set_ylabel(title_of)
        axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
    handles, labels = panels[0].get_legend_handles_labels()
    ncols = max(1, min(len(curves), 3, 180 // (8 + max(map(len, labels)))))  # as many columns as the width allows
    figure.legend(handles, labels, loc="outside lower center", ncols=ncols, frameon=False)
    figure.suptitle(title)
    figure.savefig(path, format="png", dpi=120)


TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "bleurt": "BLEURT",
    "length_ratio": "length ratio",
    "exact_match": "exact match",
    "oracle_gap": "oracle gap",
    "stutter_before": "stutter before clean-up",
    "non_words": "outputs with a non-word",
    "reference_non_words": "references with a non-word",
}
# These metrics get no column: the system column of the same name shows "hypotheses", a warning reports "truncated",
# and a table needs no more than one measure of non-words.
_UNTABLED = re.compile(r"hypotheses|truncated|(reference_)?non_words_.*")
_LENGTH = "reference_tokens"
_RECALL = "length_recall_"
_ACROSS = {"test_set": test_set_name, "steps": steps}
_HEADS = {"hypotheses": "# Hyp.", "steps": "Steps"}

Grid = dict[tuple[str, ...], dict[str, RowDict]]
"""Nested mapping from a system, then a test set or number of steps, to a row."""


def metric_names(rows: Rows) -> list[str]:
    """Metrics that get a column, in the order in which rows have them."""
    names = dict.fromkeys(name for row in rows for name in row["scores"])
    return [name for name in names if not _UNTABLED.fullmatch(name) and not _is_fact(name)]


def _is_fact(name: str) -> bool:
    return name == _LENGTH or name.startswith(_RECALL)


def cells(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Columns and lines of the whole table; if a row lacks metrics, the last column says why."""
    system = system_columns(rows)
    metrics = metric_names(rows)
    lines = [[*(SYSTEM[c](row) for c in system), *(cell(row, name) for name in metrics)] for row in rows]
    if any(row.get("note") for row in rows):
        return [*system, *metrics, "note"], [[*x, row.get("note", "")] for x, row in zip(lines, rows, strict=True)]
    return [*system, *metrics], lines


def signatures(rows: Rows) -> list[str]:
    """Signature of each metric, "NAME: SIGNATURE"; a metric with several signatures has several lines."""
    seen = [(name, score["signature"]) for row in rows for name, score in row["scores"].items()]
    shown = (each for each in dict.fromkeys(seen) if each[1] and not _is_fact(each[0]))
    return [f"{name}: {signature}" for name, signature in shown]


def facts(rows: Rows) -> list[str]:
    """Weights of each model, the references' mean length in its tokens, and its length recall, one line each."""
    lines = {row["model"]: f"weights of {row['model']}: {row['weights']}" for row in rows if row.get("weights")}
    for row in rows:
        test_set = test_set_name(row)
        if mean := row["scores"].get(_LENGTH):
            text = f"references of {test_set}: {mean['value']:.1f} tokens of {row['model']} on average, EOS included"
            lines[row["model"], test_set, _LENGTH] = text
        found = {
            name.removeprefix(_RECALL): s["value"] for name, s in row["scores"].items() if name.startswith(_RECALL)
        }
        if found:
            shares = ", ".join(f"{value:.1f} % at {k}" for k, value in found.items())
            lines[row["model"], test_set] = f"length recall of {row['model']} on {test_set}: {shares}"
    return list(lines.values())


def to_markdown(rows: Rows, skipped: Sequence[str] = ()) -> str:
    """Format the whole table with numbered rows, common settings, weights, length recalls and signatures.

    Args:
      skipped: metrics that could not be computed, and why.
    """
    columns, lines = cells(rows)
    columns = ["#", *columns]
    lines = [[str(number), *line] for number, line in enumerate(lines, 1)]
    sets = dict.fromkeys(
        f"{test_set_name(row)} ({row['languages']}, {row['sentences']:,} sentences)"
        if "sentences" in row
        else test_set_name(row)
        for row in rows
    )
    notes = [*_settings(rows, columns), *facts(rows), *signatures(rows), *skipped]
    head = f"Test set: {'; '.join(sets)}\n\n"
    table = markdown([TITLES.get(c, c) for c in columns], lines, words=(*system_columns(rows)[:-2], "note"))
    return head + table + "\n" + "".join(f"- {n}\n" for n in notes)


def _settings(rows: Rows, columns: Sequence[str]) -> list[str]:
    """Settings that have no column: one line if all models agree, else one line for each model."""
    lines = []
    for name in SYSTEM.keys() - set(columns):
        said = dict.fromkeys((row["model"], text) for row in rows if (text := SYSTEM[name](row)) != "-")
        if len({text for _, text in said}) == 1:
            lines.append(f"{name}: {next(iter(said))[1]}")
        else:
            lines += [f"{name} of {model}: {text}" for model, text in said]
    return sorted(lines)


def to_csv(rows: Rows) -> str:
    """Format rows as CSV: the test set, the system, then every metric with all its digits."""
    names = list(dict.fromkeys(name for row in rows for name in row["scores"] if name not in SYSTEM))
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["test set", *SYSTEM, *names, "note"])
    for row in rows:
        values = [row["scores"][name]["value"] if name in row["scores"] else "" for name in names]
        writer.writerow([test_set_name(row), *(text(row) for text in SYSTEM.values()), *values, row.get("note", "")])
    return file.getvalue()


def paper_tables(rows: Rows, metrics: Sequence[str] = ("bleu", "bleurt", "stutter"), across: str = "test_set") -> str:
    """Format one table a metric in Markdown; a metric that no row has gets no table.

    Lines of a model follow each other, and only the first names the model. Rows that differ only in `across` (the test
    set or the steps) share a line. Rows without metrics (options that do not fit the model) are left out.

    Args:
      across: "test_set" or "steps".

    Raises:
      PadirError: no row has any of the metrics, two rows are the same system on the same test set, one name stands for
        two test sets, or `across` is "steps" for several test sets.
    """
    rows = [row for row in rows if row["scores"]]
    _check_test_sets(rows, across)
    columns = list(dict.fromkeys(map(_ACROSS[across], rows)))
    system = [column for column in system_columns(rows) if column != across]
    grid = _grid(rows, system, across)
    parts = [
        _table(rows, grid, system, columns, metric, across)
        for metric in metrics
        if any(metric in row["scores"] for row in rows)
    ]
    if not parts:
        raise PadirError(f"no row has any of {', '.join(metrics)}: name metrics that the rows have")
    return "\n".join(parts)


def _check_test_sets(rows: Rows, across: str) -> None:
    texts: dict[str, set[str]] = {}
    for row in rows:
        texts.setdefault(test_set_name(row), set()).add(row.get("sha256", ""))
    if twice := [name for name, found in texts.items() if len(found - {""}) > 1]:
        raise PadirError(f"the name {twice[0]!r} stands for different test sets: make one table for each")
    if across == "steps" and len(texts) > 1:
        raise PadirError("across='steps' needs rows of one test set: give such rows, or across='test_set'")


def _grid(rows: Rows, system: Sequence[str], across: str) -> Grid:
    """Sort the rows into lines and columns."""
    grid: Grid = {}
    models = [row["model"] for row in rows]
    for row in sorted(rows, key=lambda row: models.index(row["model"])):
        line = grid.setdefault(tuple(SYSTEM[c](row) for c in system), {})
        column = _ACROSS[across](row)
        if column in line:
            raise PadirError(
                f"two rows have the system {label(row, rows)} and the test set {test_set_name(row)}: leave one out"
            )
        line[column] = row
    return grid


def _table(rows: Rows, grid: Grid, system: Sequence[str], columns: Sequence[str], metric: str, across: str) -> str:
    """Format the table of one metric, with its title and signatures."""
    lines = []
    named = None
    for key, by_column in grid.items():
        values = [cell(by_column[name], metric) if name in by_column else "-" for name in columns]
        if {*values} == {"-"}:
            continue
        lines.append(["" if key[0] == named else key[0], *key[1:], *values])
        named = key[0]
    heads = [_HEADS.get(c, c.capitalize().replace("_", " ")) for c in system]
    words = [head for head in heads if head not in _HEADS.values()]
    heads += [f"{name} step{'s' * (name != '1')}" for name in columns] if across == "steps" else columns
    computed = "".join(f"{line}\n" for line in signatures(rows) if line.startswith(f"{metric}: "))
    if "drop_repeats" not in system:  # all rows agree
        computed += f"drop_repeats: {SYSTEM['drop_repeats'](rows[0])}\n"
    return f"**{TITLES.get(metric, metric)}**\n\n{markdown(heads, lines, words)}\n{computed}"
