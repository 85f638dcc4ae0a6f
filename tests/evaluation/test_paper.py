"""The paper's tables: values as they are printed there, and rows of one's own beside them."""

import importlib.resources
import json

import pytest
from support.commands import refused, run

from padir.evaluation.paper import differences, paper_rows

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:{}|smooth:exp|version:{}"


def row(model="mine", task="wmt17_en_zh", steps=4, lengths=5, bleu=30.0, **changes):
    score = {"value": bleu, "signature": SIGNATURE.format("zh", "1.3.0")}
    own = {"model": model, "task": task, "split": "test", "causal": False, "search": None, "num_drafts": 1}
    own |= {"strategy": {"name": "padir"}, "num_steps": steps, "num_lengths": lengths, "scores": {"bleu": score}}
    return own | changes


# As section L.4 prints them: (table's metric, model, task, steps, value).
PRINTED = [
    ("bleu", "paper: autoregressive", "wmt14_de_en", None, 33.50),
    ("bleu", "paper: PaDIR", "wmt17_en_zh", 10, 32.68),
    ("tokenised_bleu", "paper: SUNDAE", "wmt14_en_de", 10, 28.33),
    ("tokenised_bleu", "paper: DisCo", "wmt16_ro_en", "3-6", 33.25),
    ("tokenised_bleu", "paper: CMLM", "wmt17_zh_en", 4, 22.57),
    ("bleurt", "paper: PaDIR", "wmt16_en_ro", 4, 70.23),
    ("bleurt", "paper: autoregressive", "wmt14_en_de", None, 74.97),
]


@pytest.mark.parametrize(("metric", "model", "task", "steps", "value"), PRINTED)
def test_values_are_the_papers(metric, model, task, steps, value):
    (found,) = [r for r in paper_rows([row(task=task)]) if (r["model"], r["num_steps"]) == (model, steps)]
    assert found["scores"][metric]["value"] == value
    if metric == "bleu":
        assert f"tok:{'zh' if task.endswith('zh') else '13a'}|" in found["scores"][metric]["signature"]


def test_distances_are_the_papers():
    """As section L.5 prints them: mean and standard deviation of stuttering and of other neighbours."""
    paper = json.loads((importlib.resources.files("padir.evaluation") / "paper.json").read_text())
    found = {(row["table"], row["measure"]): (row["stutter"], row["other"]) for row in paper["attention"]}
    assert len(found) == 9
    assert found[4, "self_avg"] == ([0.032, 0.023], [0.033, 0.025])
    assert found[5, "tv_max"] == ([0.23, 0.15], [0.35, 0.18]) and found[5, "cosine_min"] == ([0.01, 0.01], [0.04, 0.08])


def test_sundae_has_no_results_beside_wmt14():
    systems = {task: {r["model"] for r in paper_rows([row(task=task)])} for task in ("wmt14_de_en", "wmt16_ro_en")}
    assert systems["wmt14_de_en"] - systems["wmt16_ro_en"] == {"paper: SUNDAE"} and len(systems["wmt14_de_en"]) == 6


def test_differences_are_of_the_same_task_strategy_hypotheses_and_steps():
    own = [
        row(),
        row(
            "another signature",
            bleu=33.0,
            scores={"bleu": {"value": 33.0, "signature": SIGNATURE.format("zh", "2.6.0")}},
        ),
        row("fewer lengths", lengths=1),
        row("another strategy", strategy={"name": "threshold"}),
        row("another split", split="validation"),
        row("other steps", steps=2),
        row("causal", causal=True, strategy=None, num_steps=None, search={"name": "beam", "size": 5}, bleu=34.0),
        row("a task that the paper lacks", task="multi30k_de_en"),
        row("elsewhere", task="wmt17_en_zh", scores={"chrf": {"value": 1.0, "signature": ""}}),
    ]
    assert differences(own, paper_rows(own)) == [
        "mine, wmt17_en_zh, 4 steps, bleu: 30.00, paper: PaDIR 32.59: -2.59",
        "another signature, wmt17_en_zh, 4 steps, bleu: 33.00, paper: PaDIR 32.59: +0.41"
        " (other signature: version:2.6.0 and version:1.3.0)",
        "causal, wmt17_en_zh, N steps, bleu: 34.00, paper: autoregressive 33.94: +0.06",
    ]


def test_the_command_shows_both(tmp_path, capsys):
    file = tmp_path / "own.json"
    file.write_text(json.dumps([row()]))
    status, out, _ = run(capsys, f"tables {file} --paper")
    _, _, after = out.partition("mine, wmt17_en_zh, 4 steps, bleu: 30.00, paper: PaDIR 32.59: -2.59\n")
    claims = after.splitlines()
    assert status == 0 and len(claims) == 4 and all(line.startswith("the paper, section 3.3: ") for line in claims)
    assert claims[0].endswith("EOS included: 28 to 33") and claims[2].endswith("99th percentile: at least 5 times")
    bleu, bleurt, *_ = out.split("**BLEURT**")
    assert "| mine | padir | 5 | 4 | 30.00 |" in bleu and "| paper: PaDIR | padir | 5 | 4 | 32.59 |" in bleu
    assert "mine |" not in bleurt.split("\n\n")[1] and "| paper: autoregressive | beam | 5 | N | 65.71 |" in bleurt
    assert "CMLM" not in out  # whose tokenised BLEU is another metric
    status, out, _ = run(capsys, f"tables {file} --paper --metric tokenised_bleu")
    assert status == 0 and "| paper: CMLM | mask_predict | 5 | 4 | 33.58 |" in out
    file.write_text(json.dumps([row(task="multi30k_de_en")]))
    assert "the paper's results must be on one of wmt14_de_en, " in refused(capsys, f"tables {file} --paper")
