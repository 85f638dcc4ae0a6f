"""Print the table of speed of docs/speed.md from results/speed_*.json, which scripts/speed.sh writes.

python scripts/speed_table.py
"""

import argparse
import itertools
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "results"
# The published implementation on the same kind of machine: loss and gradient of 8 x 64 positions, two stages, 83M
# parameters, in seconds. It gives every sentence a row of 64 positions.
PUBLISHED_SECONDS, PUBLISHED_ROWS = 3.52, 8

Row = dict[str, Any]
CAPTIONS = [
    *(
        (f"`one_pass`, {what}", f"`{of}`, greedy")
        for of in ("one_pass", "autoregressive")
        for what in ("one pass", "one pass, choice of 5")
    ),
    ("`one_pass`, int8, one pass", "`autoregressive` by CTranslate2, int8, greedy"),
]
LENGTHS = ("10", "20", "40", "65")  # source pieces of the sentences in results/speed_modes_*.json
MODES_COMPARED = (
    ("`de_en_ctc`, one pass", "`de_en_ctc`, greedy"),
    ("`de_en_ctc`, one pass, choice of 5", "`de_en_ctc`, greedy"),
    ("`de_en_ctc`, int8, one pass", "`de_en_ar` by CTranslate2, int8, greedy"),
    ("`de_en`, 4 passes, choice of 5", "`de_en`, greedy"),
)


def _several(row: Row) -> int:
    """The number of hypotheses of each draft: lengths, or sentences read out of one canvas."""
    return (row["num_lengths"] or 1) * (row.get("prefix_beam") or 1)


def refining(
    hypotheses: int, precision: str = "float32", shortlist: bool = False, steps: int = 4
) -> Callable[[Row], bool]:
    """Test for rows of padir's refinement with a number of hypotheses."""
    wanted = hypotheses, steps, precision, shortlist

    def is_one(row: Row) -> bool:
        drafts = _several(row) * (row["num_drafts"] or 1)
        return not row["causal"] and (drafts, row["num_steps"], _precision(row), bool(row["shortlist"])) == wanted

    return is_one


def searching(beam: int, precision: str = "float32", shortlist: bool = False) -> Callable[[Row], bool]:
    """Test for rows of padir's autoregressive model with a beam size."""
    wanted = beam, precision, shortlist
    return lambda row: _searches(row) and (row["search"]["size"], _precision(row), bool(row["shortlist"])) == wanted


def peer(beam: int, shortlist: bool = False) -> Callable[[Row], bool]:
    """Test for rows of CTranslate2 with a beam size, and with a shortlist or the whole vocabulary."""
    return lambda row: _is_peer(row) and row["search"]["size"] == beam and bool(row["shortlist"]) == shortlist


GREEDY, GREEDY_8, PEER, PEER_5, PEER_LISTED = searching(1), searching(1, "int8"), peer(1), peer(5), peer(1, True)
LISTED, LISTED_8 = searching(1, shortlist=True), searching(1, "int8", shortlist=True)
COMPARISONS = (  # file, what, which row, against what, which rows (the fastest of them counts), target
    ("30_tokens", "30 tokens", refining(1), "own AR, greedy", GREEDY, 1.9),
    ("30_tokens", "30 tokens", refining(1), "CTranslate2 int8, greedy", PEER, 1.5),
    ("30_tokens", "30 tokens, int8", refining(1, "int8"), "CTranslate2 int8, greedy", PEER, 2.3),
    ("30_tokens", "30 tokens, int8", refining(1, "int8"), "own AR int8, greedy", GREEDY_8, None),
    ("30_tokens_shortlist", "... and 4,096 ids", refining(1, "int8", True), "AR with them", LISTED_8, None),
    ("30_tokens_shortlist", "... and 3 passes", refining(1, "int8", True, 3), "AR with them", LISTED_8, None),
    ("30_tokens_shortlist", "... and 3 passes", refining(1, "int8", True, 3), "CTranslate2, same", PEER_LISTED, None),
    ("de_en_long", "`de_en`, int8, shortlist", refining(1, "int8", True), "CTranslate2, same", PEER_LISTED, 3.0),
    ("30_tokens", "30 tokens, 5 hypotheses", refining(5), "CTranslate2 int8, beam 5", PEER_5, 1.0),
    ("30_tokens", "30 tokens, 5 hypotheses, int8", refining(5, "int8"), "CTranslate2 int8, beam 5", PEER_5, 1.0),
    ("100_tokens", "100 tokens", refining(1), "own AR, greedy", GREEDY, 2.5),
    ("30_tokens_batch_32", "30 tokens, batch of 32", refining(1), "own AR, greedy", GREEDY, 1.0),
    ("30_tokens_batch_32_shortlist", "... 4,096 ids", refining(1, shortlist=True), "AR with them", LISTED, None),
    ("30_tokens_batch_32", "30 tokens, batch of 32, int8", refining(1, "int8"), "own AR int8, greedy", GREEDY_8, None),
    ("30_tokens_batch_32", "30 tokens, batch of 32, int8", refining(1, "int8"), "CTranslate2 int8, greedy", PEER, None),
)


def table(results: Path = RESULTS) -> str:
    """Format the table in Markdown."""
    lines = ["| what | p50 | against | p50 | times as fast (range) | target |", "|---|---:|---|---:|---:|---:|"]
    names = [*dict.fromkeys(name for name, *_ in COMPARISONS)]
    found = dict(zip(names, _read(results, *names), strict=True))
    for name, what, first, against, second, target in COMPARISONS:
        rows = found[name]["rows"]
        (ours,) = filter(first, rows)
        theirs = min(filter(second, rows), key=_p50)
        what, against = (f"{text}{_bleu(row)}" for text, row in ((what, ours), (against, theirs)))
        measured = _times_as_fast(ours, theirs)
        goal = "-" if target is None else f"{target:.1f}"
        lines.append(f"| {what} | {_ms(ours)} | {against} | {_ms(theirs)} | {measured} | {goal} |")
    return "\n".join(lines)


def modes(results: Path = RESULTS) -> str:
    """Format quality and time of trained models on sentences of several lengths, of results/speed_modes_*.json."""
    ways = _ways(results)
    lines = [f"| model and mode | {' | '.join(f'{pieces} pieces' for pieces in LENGTHS)} |"]
    lines.append("|---" + "|---:" * len(LENGTHS) + "|")
    for way, rows in ways.items():
        cells = []
        for pieces in LENGTHS:
            both = [rows[pieces, batch] for batch in (1, 32) if (pieces, batch) in rows]
            times = " / ".join(f"{1e3 / row['scores']['sentences_per_second']['value']:.1f}" for row in both)
            cells.append(f"{both[0]['scores']['bleu']['value']:.1f}; {times}" if both else "-")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def modes_compared(results: Path = RESULTS) -> str:
    """Format how many times as fast the modes are as greedy search."""
    ways = _ways(results)
    lines = ["| what | against | batch |" + "".join(f" {pieces} pieces |" for pieces in LENGTHS)]
    lines.append("|---|---|---:|" + "---:|" * len(LENGTHS))
    for (what, against), batch in itertools.product(MODES_COMPARED, (1, 32)):
        places = [(pieces, batch) for pieces in LENGTHS]
        ratios = [_times_as_fast(ways[what][at], ways[against][at]) if at in ways[what] else "-" for at in places]
        lines.append(f"| {what} | {against} | {batch} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def captions(results: Path = RESULTS) -> str:
    """Format how many times as fast one pass is as greedy search on captions, of results/speed_captions.json."""
    best: dict[tuple[str, int], Row] = {}
    for row in _rows(results, "captions"):
        place = _way(row), row["batch_size"]
        best[place] = min(best.get(place, row), row, key=_p50)
    lines = ["| what | against | batch 1 | batch 32 |", "|---|---|---:|---:|"]
    for what, against in CAPTIONS:
        ratios = [_times_as_fast(best[what, batch], best[against, batch]) for batch in (1, 32)]
        lines.append(f"| {what} | {against} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def _ways(results: Path) -> dict[str, dict[tuple[str, int], Row]]:
    """Rows by model and mode, then by source pieces and batch; of several equal searches, the fastest."""
    ways: dict[str, dict[tuple[str, int], Row]] = {}
    names = [path.stem.removeprefix("speed_") for path in sorted(results.glob("speed_modes_*.json"))]
    for name, found in zip(names, _read(results, *names), strict=True):
        pieces = name.split("_")[1]
        for row in found["rows"]:
            if _several(row) > 5:  # a choice of 20: a table of bigrams takes less time
                continue
            best, place = ways.setdefault(_way(row), {}), (pieces, row["batch_size"])
            best[place] = min(best.get(place, row), row, key=_p50)
    return ways


def _way(row: Row) -> str:
    """The name of a row's model and mode in the table of modes."""
    model = re.sub(r"(, refine|, causal|, blank penalty \S+|, \d threads?)*$", "", row["model"])
    model = re.sub(r"^\w+", r"`\g<0>`", model)
    if row["causal"]:
        size = row["search"]["size"]
        return f"{model}, " + (f"beam of {size}" if size > 1 else "greedy")
    passes = "one pass" if row["num_steps"] == 1 else f"{row['num_steps']} passes"
    return f"{model}, {passes}" + (f", choice of {_several(row)}" if _several(row) > 1 else "")


def shapes(name: str, results: Path = RESULTS) -> str:
    """Format the rows in int8 of deep encoders and shallow decoders, of results/speed_shapes_NAME.json."""
    rows = [row for row in _rows(results, f"shapes_{name}") if _precision(row) == "int8"]
    own = {row["model"].removesuffix(", int8"): row for row in filter(_searches, rows)}
    peers = sorted(filter(_is_peer, rows), key=_p50)
    best: dict[str, Row] = {}
    for row in peers:
        best.setdefault(row["model"].split(" by ")[0], row)  # each model with its better number of threads
    shown = [row for row in rows if not row["causal"]] + [*own.values(), *best.values()]
    lines = [
        "| model | passes | p50 | against ar_6_6 | ar_6_2 | ar_12_1 | against the fastest by CTranslate2 |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in shown:
        against = [*(own[name] for name in ("ar_6_6", "ar_6_2", "ar_12_1")), peers[0]]
        cells = ["-" if row is other else _times_as_fast(row, other) for other in against]
        lines.append(f"| {row['model']} | {row['num_steps'] or 'one per token'} | {_ms(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def devices(chip: str, results: Path = RESULTS) -> str:
    """Format the estimates of decoding on a chip in Markdown, from the results of the commands in docs/devices.md."""
    found: dict[tuple[int, int], dict[str, Row]] = {}
    for path in sorted(results.glob(f"compile_{chip}_*.json")):
        for program in json.loads(path.read_text())["programs"]:
            if named := re.fullmatch(
                r"(\w+)(?: search)?, (\d+) × \d+, (\d+) tokens(?:, (\d) passes)?", program["name"]
            ):
                kind, batch, tokens, passes = named.groups()
                found.setdefault((int(tokens), int(batch)), {})[passes or kind] = program
    lines = [
        "| tokens | batch | 1 pass (CTC) | 2 passes | 4 passes | greedy search | beam of 5 | greedy / 4 passes |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (tokens, batch), programs in sorted(found.items()):
        if len(programs) < 5:  # not all of them were compiled
            continue
        cells = [_estimate(programs[each]) for each in ("1", "2", "4", "greedy", "beam")]
        times = programs["greedy"]["cycle_seconds"] / programs["4"]["cycle_seconds"]
        lines.append(f"| {tokens} | {batch} | {' | '.join(cells)} | {times:.1f} |")
    return "\n".join(lines)


def gpu(results: Path = RESULTS) -> str:
    """Format the times of decoding on a GPU, of results/speed_gpu_*_tokens_*.json; "-" for what was not measured."""
    lines = ["| tokens | batch | what | p50 (range of the repeats) | sum of the stages |", "|---:|---:|---|---:|---:|"]
    shapes = [re.findall(r"\d+", path.stem) for path in results.glob("speed_gpu_*_tokens_batch_*.json")]
    for tokens, batch in sorted(shapes, key=lambda shape: [*map(int, shape)]):
        for row in _rows(results, f"gpu_{tokens}_tokens_batch_{batch}"):
            drafts = f", {row['num_drafts']} drafts" if (row["num_drafts"] or 1) > 1 else ""
            beam = row["search"] and row["search"]["size"]
            search = "greedy search" if beam == 1 else f"beam of {beam}"
            what = search if row["causal"] else f"{row['num_steps']} passes{drafts}"
            stages = 1e3 * sum(row["details"]["stages"].values())
            lines.append(f"| {tokens} | {batch} | {what} | {_ms_range(row)} | {stages:.1f} ms |")
    return "\n".join(lines)


def _ms_range(row: Row) -> str:
    """The median of the calls, and the range of the repeats' means; "-" if the calls were not timed."""
    if "p50_ms" not in row["scores"]:
        return "-"
    seconds = row["details"]["repeat_seconds"]
    calls = int(re.search(r"calls:(\d+)", row["scores"]["p50_ms"]["signature"])[1]) / len(seconds)
    return f"{_p50(row):.1f} ms ({1e3 * min(seconds) / calls:.1f} to {1e3 * max(seconds) / calls:.1f})"


def gpu_training(results: Path = RESULTS) -> str:
    """Format the times of training steps on a GPU, of results/speed_gpu_training_*.json."""
    lines = [
        "| configuration | step (quartiles) | target tokens/s | padding | TFLOP/s | XLA's temporaries |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for run in ("wmt14_de_en", "wmt14_de_en_ar"):
        (found,) = _read(results, f"gpu_training_{run}")
        of = found["figures"]
        step = f"{of['step_ms']:.0f} ms ({of['step_ms_lower']:.0f} to {of['step_ms_upper']:.0f})"
        rates = f"{of['tokens_per_second']:,.0f} | {of['padding_share']:.1%}"
        teraflops = of["model_flops_per_second"] / 1e12
        gigabytes = of["temporary_mb"] / 1e3
        lines.append(f"| {run} | {step} | {rates} | {teraflops:.0f} | {gigabytes:.1f} GB |")
    return "\n".join(lines)


def _estimate(program: Row) -> str:
    """The estimated time, and the share of its bound."""
    seconds, bound = program["cycle_seconds"], program["bound"]
    return f"{1e3 * seconds:.3g} ms" + (f" ({bound / seconds:.0%})" if bound else "")


def _rows(results: Path, name: str) -> list[Row]:
    (found,) = _read(results, name)
    return found["rows"]


def _read(results: Path, *names: str) -> list[dict[str, Any]]:
    """The files of a table, which must all come from one machine."""
    found = [json.loads((results / f"speed_{name}.json").read_text()) for name in names]
    machines = {each["environment"]["processor"] for each in found}
    if len(machines) > 1:
        raise SystemExit(f"the files of a table come from several machines: {', '.join(sorted(machines))}")
    return found


def memory(results: Path = RESULTS) -> str:
    """Format the memory of refining in Markdown."""
    (row,) = _rows(results, "128_tokens_batch_16")
    needed = row["scores"]["temporaries_mb"]["value"]
    return (
        "| XLA's temporaries of refining | MB | target at most | the published implementation |\n|---|---:|---:|---:|\n"
        f"| 16 sentences of 128 tokens, 5 hypotheses | {needed:.0f} | 750 | 2,991 |"
    )


def training(results: Path = RESULTS) -> str:
    """Format the speed of training in Markdown."""
    lines = [
        "| training, 83M parameters, two stages, float32 | target tokens/s | padding | of a matrix product's speed |"
        " times the published (target) |",
        "|---|---:|---:|---:|---:|",
    ]
    found = _read(results, "training_multi30k_de_en", "training_wmt_dev_de_en")
    kinds = (("captions (Multi30k)", 4.0), ("news (WMT development sets)", 2.5))
    for (what, target), each in zip(kinds, found, strict=True):
        metrics = each["figures"]
        times = metrics["pairs_per_second"] / (PUBLISHED_ROWS / PUBLISHED_SECONDS)
        lines.append(
            f"| {what} | {metrics['tokens_per_second']:.0f} | {metrics['padding_share']:.1%} |"
            f" {metrics['share_of_matmul']:.0%} | {times:.1f} ({target:.1f}) |"
        )
    return "\n".join(lines)


def rounding(results: Path = RESULTS) -> str:
    """Format the speed of training with and without products of rounded operands."""
    lines = ["| | float32 | bfloat16 products | gain |", "|---|---:|---:|---:|"]
    for config, what in (("distilled_cpu", "refinement, two stages"), ("ar_cpu", "autoregressive")):
        for cores, said in (("0-1", "two cores"), ("0", "one core")):
            names = [f"rounding_{config}_{cores}_{precision}" for precision in ("default", "BF16_BF16_F32")]
            exact, rounded = (each["figures"]["tokens_per_second"] for each in _read(results, *names))
            lines.append(f"| {what}, {said} | {exact:,.0f} | {rounded:,.0f} | {rounded / exact:.2f} |")
    return "\n".join(lines)


def _is_peer(row: Row) -> bool:
    return "CTranslate2" in row["model"]


def _searches(row: Row) -> bool:
    return row["causal"] and not _is_peer(row)


def _times_as_fast(ours: Row, theirs: Row) -> str:
    """Median of the repeats' ratios, with their range; the systems take turns in a repeat."""
    ratios = sorted(mine / other for mine, other in zip(_rates(ours), _rates(theirs), strict=True))
    return f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def _precision(row: Row) -> str:
    return "int8" if ", int8" in row["model"] else "float32"  # a peer's number of threads follows


def _rates(row: Row) -> list[float]:
    """Repeats a second, one rate for each repeat."""
    return [1 / seconds for seconds in row["details"]["repeat_seconds"]]


def _p50(row: Row) -> float:
    return row["scores"]["p50_ms"]["value"]


def _bleu(row: Row) -> str:
    """The BLEU of a model that was trained; "" for random weights."""
    return f" ({row['scores']['bleu']['value']:.1f} BLEU)" if "bleu" in row["scores"] else ""


def _ms(row: Row) -> str:
    return f"{_p50(row):.0f} ms"


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    print(table(), memory(), training(), sep="\n\n")
