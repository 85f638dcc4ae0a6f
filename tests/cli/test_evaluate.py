"""`padir evaluate`, `tables`, `compare` and `score`: rows, files, and numbers."""

import json
from pathlib import Path

import pytest
from support.commands import corpus, refused, results, run

from padir.cli import main


@pytest.fixture(scope="module")
def report(built, short, tmp_path_factory):
    """The files of one evaluation with a model under two names, and two strategies."""
    output = tmp_path_factory.mktemp("report") / "x"
    command = f"""
        evaluate --model A={short} {short} --output {output} {corpus(built, "validation")} --split validation
        --strategy padir mask_predict --num_steps 2 --rerank mbr --num_drafts 2
        --metric known_words={built}/train.en
    """
    assert main(command.split()) == 0
    return output


class TestReport:
    def test_every_model_and_strategy_has_a_row(self, short, report):
        rows = json.loads(Path(f"{report}.json").read_text())
        assert [(r["model"], r["strategy"]["name"]) for r in rows] == [
            (name, strategy) for name in ("A", str(short)) for strategy in ("padir", "mask_predict")
        ]
        assert {"bleu", "length_recall_5", "seconds", "stutter"} <= set(rows[0]["scores"])
        assert {"non_words", "reference_non_words"} <= set(rows[0]["scores"])
        assert rows[0]["scores"]["seconds"]["signature"].endswith("compile:no")
        assert rows[0]["rerank"]["name"] == "mbr" and rows[0]["split"] == "validation"
        assert rows[0]["scores"]["bleu"] == rows[2]["scores"]["bleu"]  # the same model under two names

    def test_the_table_is_written_in_every_format(self, report):
        markdown = Path(f"{report}.md").read_text()
        assert "validation (de-en, 20 sentences)" in markdown and "- rerank: mbr" in markdown
        names = sorted(path.name for path in Path(f"{report}.rows").iterdir())
        assert names == [*(f"{i:02d}.txt" for i in range(1, 5)), "reference.txt"]

    def test_tables_reads_it(self, report, tmp_path, capsys):
        status, out, _ = run(capsys, f"tables {report}.json --metric chrf")
        assert status == 0 and out.startswith("**chrF**") and "| A | padir |" in out
        assert run(capsys, f"tables {report}.json --output {tmp_path}/t.md")[1] == ""
        assert "**BLEU**" in (tmp_path / "t.md").read_text()
        known = "no row has 'ter': name metrics that the files have (bleu, chrf"
        assert known in refused(capsys, f"tables {report}.json --metric ter")

    @pytest.mark.parametrize(("lines", "warned"), [(99, True), (100, False)])
    def test_compare_says_when_lines_are_too_few(self, tmp_path, monkeypatch, capsys, lines, warned):
        monkeypatch.chdir(tmp_path)
        for name in "abc":
            (tmp_path / name).write_text("".join(f"{name} runs {i}\n" for i in range(lines)))
        status, _, errors = run(capsys, "compare --languages de-en --target a b c --set samples=100")
        assert status == 0 and ("99 lines are too few" in errors) == warned

    def test_compare_reads_its_hypotheses(self, report, tmp_path, capsys):
        command = f"compare --target {report}.rows/reference.txt --languages zh-en"
        command += f" {report}.rows/01.txt {report}.rows/03.txt --set samples=100"
        found, out = results(capsys, tmp_path / "results.json", command)
        assert "baseline" in out and "BLEU: nrefs:1|bs:100" in out and "|tok:13a|" in out  # not Chinese's tokenizer
        assert [r["p_value"] for r in found] == [None, 1.0] * 2


def test_only_commands_that_have_recipes_name_them(built, capsys):
    assert "no corpus: give --task NAME, or --languages" in refused(capsys, f"evaluate --model {built}/model")


def test_score_writes_a_line_for_every_pair(built, causal, tmp_path, capsys):
    command = f"score --model {causal} --input {built}/validation.de --target {built}/validation.en"
    found, out = results(capsys, tmp_path / "results.json", command)
    lines = [line.split("\t") for line in out.splitlines()]
    targets = (built / "validation.en").read_text().splitlines()
    assert [int(line[1]) for line in lines] == [len(target.split()) + 1 for target in targets]
    assert all(float(total) / int(n) == pytest.approx(float(mean), abs=1e-3) for total, n, mean in lines)
    totals = sum(float(line[0]) for line in lines), sum(int(line[1]) for line in lines)
    assert found["pairs"] == 20 and found["mean"] == pytest.approx(totals[0] / totals[1], rel=1e-4)


DATA, FILES = "--data {built}/data --split validation", "--input {built}/validation.de --target"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (f"score --model {{causal}} {FILES} {{built}}/one.en", "20 sources need 20 targets, got 1"),
        (f"score --model {{short}} {FILES} {{built}}/validation.en", "gives targets no probability"),
        (f"evaluate {DATA} --rerank mbr --num_lengths 2 --length_normalization 2", "applies only to the rerank rules"),
        (f"evaluate {DATA} --rerank {{short}} --num_lengths 2", "holds no autoregressive model"),
        (f"evaluate {DATA} --metric bleurt={{built}}", "is no BLEURT checkpoint"),
        (f"evaluate {DATA} --metric bleurt", "metric must be bleurt=DIR, known_words=FILE or"),
        (f"evaluate {DATA} --metric os:nothing", "the module os has no nothing: write the metric as MODULE:NAME"),
        (f"evaluate {DATA} --writer os:nothing", "the module os has no nothing: write the writer as MODULE:NAME"),
        (f"evaluate {DATA} --writer nothing", "--writer must be MODULE:NAME, a function that makes a writer, got"),
        (f"evaluate {DATA} --gin.Decoding.canvas=@Mask()", "or train with that noise"),
        (f"evaluate {DATA} --num_steps 4 0", "num_steps must be at least 1, got 0"),  # before any work
        (f"evaluate {DATA} --task toy_de_en", "give either --data, or --task or files, not both"),
        (f"evaluate {DATA} --languages de-en --test a.de a.en", "give either --data, or --task or files, not both"),
        ("tables {built}/none.json", "holds no rows"),
    ],
)
def test_refused(built, causal, short, capsys, command, words):
    (built / "one.en").write_text("one\n")
    (built / "none.json").write_text('[{"scores": {}}]')
    own = f"--model {short}" * command.startswith("evaluate")
    assert words in refused(capsys, f"{command.format(built=built, causal=causal, short=short)} {own}")
