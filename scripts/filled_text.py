"""Tables and sentences of README and docs/results.md that several files of results/ give (`fill_tables.py`)."""

import itertools
import json
import statistics
from collections.abc import Mapping
from typing import Any

from result_tables import RESULTS, load, table

PARTS = {"de_en": "`de_en`", "de_en_ar": "`de_en_ar`", "de_en_ctc": "`de_en_ctc`"}


def score(row: Mapping[str, Any], metric: str) -> float:
    """A row's score."""
    return row["scores"][metric]["value"]


def shipped() -> dict[tuple[str, int | None], dict[str, Any]]:
    """The rows of the shipped models by model and beam; None refines."""
    rows = load("shipped_tatoeba")
    return {(row["model"].partition(",")[0], row["search"] and row["search"]["size"]): row for row in rows}


def one_pass() -> str:
    """The README's sentence on one pass."""
    rows = shipped()
    behind = score(rows["de_en_ctc", 1], "bleu") - score(rows["de_en_ctc", None], "bleu")
    return f"""With its bigrams, one pass of `de_en_ctc` is {behind:.1f} BLEU behind greedy search by the same model,
and slower in this run ([quality and speed](docs/speed.md))."""


def paper_size() -> str:
    """The README's sentences on speed at the paper's size."""
    found = {}
    for batch, name in ((1, "speed_30_tokens"), (32, "speed_30_tokens_batch_32")):
        for row in load(name):
            size = row["search"] and row["search"]["size"]
            drafts = row["num_drafts"] if row["num_steps"] in (4, None) else None
            found[row["model"], size, drafts, batch] = f"{score(row, 'p50_ms'):,.0f} ms"
    ctranslate2 = found["ar by CTranslate2, int8, 1 thread", 1, None, 1]
    return f"""At the paper's size (67M parameters, random weights, 2 cores of an AMD EPYC), four passes over a
draft of 30 tokens take {found["padir", None, 1, 1]}. The autoregressive model's greedy search takes
{found["ar", 1, None, 1]}. 32 such sentences at once take padir {found["padir", None, 1, 32]}, and greedy search
{found["ar", 1, None, 32]}. For one sentence, padir takes {found["padir", None, 5, 1]} with five drafts, and CTranslate2
{ctranslate2} (int8, greedy search)."""


def unknown_words() -> str:
    """The share of references with a non-word."""
    shares = [score(load(name)[0], "reference_non_words") for name in ("general_de_en_tatoeba", "multi30k_de_en_dual")]
    return "Of the references, {:.1f} % (Tatoeba) and {:.1f} % (Multi30k) have a non-word.".format(*shares)


def everyday() -> str:
    """Outputs with a non-word for sentences outside the corpora."""
    lines = [
        [f"`{row['model']}`", row["mode"], f"{row['non_words']:.1f}", f"{row['low']:.1f} to {row['high']:.1f}"]
        for row in load("everyday")
    ]
    return table(["model", "mode", "outputs with a non-word, %", "95 % interval"], lines, text=True)


def strategies() -> str:
    """BLEU of a trained model by strategy and passes."""
    found: dict[str, dict[int, str]] = {}
    for row in load("strategies_validation"):
        name = row["strategy"]["name"]
        if name == "renoise":
            name += f":gamma={row['strategy']['gamma']:g}"
        found.setdefault(name, {})[row["num_steps"]] = f"{score(row, 'bleu'):.1f}"
    made = table(["strategy", "4 passes", "10 passes"], [[f"`{k}`", v[4], v[10]] for k, v in found.items()], text=True)
    close = [float(each) for name, own in found.items() if name != "renoise:gamma=0.5" for each in own.values()]
    return f"""{made}

Except for `renoise` with `gamma=0.5`, all scores lie within {max(close) - min(close):.1f} BLEU. So no ranking is
decided, and no strategy was scored on the test split."""


def stutter() -> str:
    """Repeated words per 1,000 words by text and passes, with and without the clean-up."""
    lines = []
    for text, name in (("Tatoeba", "general_de_en_tatoeba"), ("Bible", "bible_stutter")):
        rows = load(name)
        greedy = [row for row in rows if row["causal"] and row["search"]["size"] == 1]
        causal = [f"{score(row, 'stutter'):.2f}" for row in greedy]
        for row in rows:
            if not row["causal"] and row["num_lengths"] == 1:
                cells = f"{score(row, 'stutter_before'):.1f}", f"{score(row, 'stutter'):.2f}"
                lines.append([text, str(row["num_steps"]), *cells, *causal])
    head = ["text", "passes", "repeats kept", "repeats dropped", "`de_en` from left to right", "`de_en_ar`"]
    removed = [1 - float(line[3]) / float(line[2]) for line in lines]
    ctc = {bool(row["causal"]): f"{score(row, 'stutter'):.2f}" for row in reversed(load("general_de_en_ctc_tatoeba"))}
    return f"""{table(head, lines, text=True)}

The clean-up removes {100 * min(removed):.0f} to {100 * max(removed):.0f} % of the repeats. What is left is too little
for fine comparisons. On Tatoeba `de_en_ctc`, which drops no repeats, has {ctc[False]} in one pass and {ctc[True]} by
greedy search ([table](speed.md#one-pass-against-greedy-search))."""


def similarity() -> str:
    """The share of pairs of systems that a neural metric orders as BLEU does."""
    rows = [*load("general_de_en_tatoeba"), *load("general_de_en_ctc_tatoeba")]
    pairs = [*itertools.combinations([(score(row, "bleu"), score(row, "similarity")) for row in rows], 2)]
    others = [abs(a[0] - b[0]) for a, b in pairs if (a[0] - b[0]) * (a[1] - b[1]) <= 0]
    return f"""Here and in [the table of one pass](speed.md#one-pass-against-greedy-search) are {len(pairs)}
pairs of systems. Similarity and BLEU prefer the same system in {len(pairs) - len(others)}; in the others BLEU differs
by at most {max(others):.1f}."""


def updates() -> str:
    """Right outputs of the paper's objective by number of updates, in two sentences."""
    runs = json.loads((RESULTS / "components.json").read_text())
    long, short = (
        statistics.mean(run["right"]["padir 4"] for name, run in runs.items() if name.rpartition("_")[0] == system)
        for system in ("padir_longer", "padir")
    )
    return f"""The systems were far from trained: after 1,500 updates the paper's objective has {short:.1f} % right
outputs, after 4,000 it has {long:.1f} %. So the comparison says nothing about long runs."""


def with_bigrams() -> str:
    """One pass with and without the table of bigrams or the fallback, and greedy search, on three validation sets."""
    lines = []
    for name, own in json.loads((RESULTS / "fusion_validation.json").read_text()).items():
        found = {
            way: [row["scores"][each]["value"] for each in ("bleu", "chrf", "non_words")] for way, row in own.items()
        }
        cells = [
            " / ".join(f"{each:.1f}" for each in found[way]) for way in ("one pass", "table", "fallback", "greedy")
        ]
        again = f"{own['fallback']['scores']['fallback']['value']:.1f}"
        lines.append([name, f"{own['greedy']['sentences']:,}", *cells, again])
    head = ["BLEU / chrF / non-words, %", "sentences", "one pass", "with the table", "with fallback", "greedy"]
    return table([*head, "written again, %"], lines, text=True)


def blank_penalty() -> str:
    """BLEU of one pass, and of a choice of five, by blank penalty."""
    found = {(row["blank_penalty"], row["prefix_beam"]): f"{score(row, 'bleu'):.1f}" for row in load("blank_penalty")}
    penalties = sorted({penalty for penalty, _ in found})
    lines = [[way, *(found[each, beam] for each in penalties)] for way, beam in (("one pass", 1), ("choice of 5", 5))]
    return table(["blank penalty", *(f"{each:g}" for each in penalties)], lines, text=True)


def one_pass_behind() -> str:
    """Differences in BLEU of one pass of `de_en_ctc`, and of a choice of five, to other systems."""
    said = json.loads((RESULTS / "shipped_compare.json").read_text())
    lines = []
    for label, other in (
        ("greedy search with the same parameters", "greedy"),
        ("greedy search by `de_en_ar`", "de_en_ar_greedy"),
        ("`de_en_ar` with a beam of 5", "de_en_ar_beam_5"),
    ):
        cells = []
        for way in ("one_pass", "choice_of_5"):
            row = said[f"{way} {other}"]
            low, high = row["difference"]
            cells.append(f"{row['score'] - row['baseline']:.1f} ({low:.1f} to {high:.1f})")
        lines.append([label, *cells])
    return table(["behind", "one pass", "choice of 5"], lines, text=True)


def terms() -> str:
    """Terms used, quality and time: without terms, with them, and as placeholders in the source."""
    lines, ratios = [], []
    for text, name in (("Tatoeba", "tatoeba"), ("Multi30k", "multi30k")):
        rows = json.loads((RESULTS / f"terms_{name}.json").read_text())["rows"]
        for (model, mode), group in itertools.groupby(rows, key=lambda row: (row["model"], row["mode"])):
            own = [*group]
            cells = [", ".join(f"{row[each]:.1f}" for row in own) for each in ("bleu", "chrf", "seconds")]
            used = ", ".join(str(row["used"]) for row in own)
            ratios.append(own[1]["seconds"] / own[0]["seconds"])
            lines.append([text, f"{PARTS[model]}, {mode}", used, *cells])
    return f"""{table(["text", "model", "terms used", "BLEU", "chrF", "seconds"], lines, text=True)}

Terms take {statistics.median(ratios):.1f} times as long (median of rows; {min(ratios):.1f} to {max(ratios):.1f}),
because sentences that miss their term need a pass for word alignment."""


def paper_bleu() -> str:
    """The paper's SacreBLEU."""
    paper = json.loads((RESULTS.parent / "padir" / "evaluation" / "paper.json").read_text())
    (first,) = (each for each in paper["tables"] if each["metric"] == "bleu")
    head = ["-".join(task.split("_")[1:]).upper() for task in paper["tasks"]]
    lines = []
    for row in first["rows"]:
        label = f"{row['steps']} steps" if row["steps"] else "autoregressive"
        lines.append([f"the paper, {label}", *(f"{value:.2f}" for value in row["values"])])
    return table(["SacreBLEU, 5 hypotheses", *head], lines, text=True)


def differences() -> str:
    """Differences of the shipped models by `padir compare`, and their scores without near twins."""
    said = json.loads((RESULTS / "shipped_compare.json").read_text())

    def apart(pair: str) -> tuple[str, str]:
        row = said[pair]
        low, high = row["difference"]
        return f"{row['score'] - row['baseline']:.1f}", f"{low:.1f} to {high:.1f}"

    best, greedy, held_out = (apart(each) for each in ("de_en_ar_beam_5", "de_en_greedy", "de_en_greedy_validation"))
    refining, beam = load("general_de_en_without_twins")
    return f"""- `de_en_ar` with a beam of 5 has {best[0]} BLEU more than greedy search by `de_en` (95 % interval:
  {best[1]}).
- Greedy search by `de_en` has {greedy[0]} more than refining by default ({greedy[1]}), and on the validation split
  {held_out[0]} more ({held_out[1]}).
- On the {refining["sentences"]} sentences without near-duplicates in the training text (`scripts/without_twins.py`),
  refining has {score(refining, "bleu"):.1f} BLEU, and `de_en_ar` {score(beam, "bleu"):.1f} with a beam of 5. Of the
  refined outputs, {score(refining, "non_words"):.0f} % have a non-word; of the outputs of `de_en_ar`,
  {score(beam, "non_words"):.0f} %."""


def plans() -> str:
    """XLA's plans of the training step's memory, and what devices exchange in a step."""
    lines = []
    for plan in json.loads((RESULTS / "plans.json").read_text()):
        options = [option.removeprefix("--gin.") for option in plan["options"]]
        said = ", ".join(f"`{option}`" for option in options) or "none"
        exchanged = [f"{size / 1e6:,.0f} MB {kind}" for kind, size in plan["exchanged"].items() if size >= 5e6]
        head = [plan["config"], plan["topology"], said]
        lines.append([*head, f"{plan['bytes'] / 1e9:.1f} GB", ", ".join(exchanged) or "-"])
    return table(
        ["configuration", "topology", "options", "memory of a device", "exchanged in a step"], lines, text=True
    )


def step_needs() -> str:
    """What XLA plans and estimates for the training step with two shapes of a batch's rows."""
    lines = []
    for device, layers in (("h100", "6 + 6"), ("v5e", "1 + 1"), ("v3", "1 + 1")):
        files = [json.loads((RESULTS / f"step_{device}_{length}.json").read_text()) for length in (256, 128)]
        (wide,), (narrow,) = (each["programs"] for each in files)
        if narrow["cycle_seconds"]:
            figures = {"estimate, ms": [1e3 * each["cycle_seconds"] for each in (wide, narrow)]}
        else:  # XLA gives no cycles for GPUs
            figures = {"the least time, ms": [1e3 * each["bound"] for each in (wide, narrow)]}
        figures |= {
            "TFLOP of matrix products": [each["matrix_flops"] / 1e12 for each in (wide, narrow)],
            "memory, GB": [each["memory"] / 1e9 for each in (wide, narrow)],
        }
        for figure, (before, now) in figures.items():
            cells = [f"{before:.1f}", f"{now:.1f}", f"{now / before:.2f}"]
            lines.append([files[0]["topology"], layers, figure, *cells])
    head = ["topology", "layers", "for each device", "256 rows of 256", "512 rows of 128", "ratio"]
    return table(head, lines, text=True)


def forced_words() -> str:
    """padir's terms beside constrained beam search by transformers."""
    lines = []
    for row in json.loads((RESULTS / "terms_transformers.json").read_text())["rows"]:
        given = {"plain": "without terms", "terms": "with terms"}[row["kind"]]
        lines.append([f"{row['program']}, {given}", str(row["used"]), f"{row['bleu']:.1f}", f"{row['chrf']:.1f}"])
    return table(["`de_en_ar`, beam 5, 100 sentences", "terms used", "BLEU", "chrF"], lines, text=True)


PEAKS = {  # TFLOP/s in bfloat16, of the data sheets
    "TPU v3-8 (4 chips)": 492,
    "TPU v4-8 (4 chips)": 1100,
    "TPU v5e, 8 chips": 1576,
    "TPU v6e, 8 chips": 7344,
    "one H100": 989,
    "one A100": 312,
    "8 H100": 7912,
}
STEPS = {"teacher": (100_000, 2.6e18), "student": (500_000, 2.24e19)}  # and FLOPs of them all, as the page says


def hours() -> str:
    """Hours of the paper's run at shares of the peak, and no fewer than one loader process needs for the batches."""
    (alone, *_) = json.loads((RESULTS / "loader.json").read_text())["rows"]

    def needed(stage: str, peak: float, share: float) -> str:
        steps, flops = STEPS[stage]
        needs = max(flops / (share * peak * 1e12), steps * alone["cpu_ms"] / 1e3) / 3600
        return f"{needs:.1f}" if needs < 10 else f"{needs:.0f}"

    lines = []
    for machine, peak in PEAKS.items():
        ranges = [f"{needed(stage, peak, 0.4)} to {needed(stage, peak, 0.15)} h" for stage in STEPS]
        lines.append([machine, f"{peak:,}", *ranges, f"{needed('student', peak, 0.1)} h"])
    return table(["machine", "peak, TFLOP/s", *STEPS, "student at 10 % of the peak"], lines, text=True)


def loader() -> str:
    """The CPU time in which the first of some hosts makes a batch."""
    lines = []
    for row in json.loads((RESULTS / "loader.json").read_text())["rows"]:
        host = "the only one" if row["hosts"] == 1 else f"one of {row['hosts']}"
        rate = row["hosts"] * row["tokens"] / row["cpu_ms"] * 1e-3
        lines.append([host, f"{row['cpu_ms']:.1f} ms", f"{rate:.1f} million"])
    return table(["host", "CPU time of a batch", "target tokens a second of all hosts"], lines, text=True)


TEXTS = {
    each.__name__: each
    for each in (one_pass, paper_size, unknown_words, everyday, strategies, stutter, differences, similarity, updates)
    + (with_bigrams, blank_penalty, one_pass_behind, paper_bleu, terms, plans, step_needs, forced_words, hours, loader)
}
