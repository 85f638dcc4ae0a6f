"""`padir evaluate`, `tables`, `compare` and `score`: rows, files, and numbers."""

import json
from pathlib import Path

import pytest
from support.commands import corpus, refused, results, run

from padir.cli import main
from padir.metrics.bleurt import MissingPackage


@pytest.fixture(scope="module")
def report(built, short, tmp_path_factory):
    """The files of one evaluation with a model under two names, and two strategies."""
    output = tmp_path_factory.mktemp("report") / "x"
    command = ["evaluate", "--model", f"A={short}", short, "--output", output]
    command += ["--strategy", "padir", "mask_predict", *corpus(built, "validation"), "--split", "validation"]
    command += ["--num_steps", 2, "--set=oracle_lengths=true", "--metric", "bleurt=bleurt"]
    command += ["--rerank", "mbr", "--num_drafts", 2]
    command += ["--metric", f"known_words={built / 'train.en'}"]

    def missing(folder):
        raise MissingPackage("BLEURT needs TensorFlow")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("padir.metrics.bleurt.Bleurt.load", missing)
        assert main([str(argument) for argument in command]) == 0
    return output


class TestReport:
    def test_every_model_and_strategy_has_a_row(self, short, report):
        rows = json.loads(Path(f"{report}.json").read_text())
        assert [(r["model"], r["strategy"]["name"], r["oracle_lengths"]) for r in rows] == [
            (name, strategy, oracle)
            for name in ("A", str(short))
            for oracle in (False, True)
            for strategy in ("padir", "mask_predict")
        ]
        assert {"bleu", "length_recall_5", "oracle_gap", "seconds", "stutter"} <= set(rows[0]["scores"])
        assert {"non_words", "reference_non_words"} <= set(rows[0]["scores"])
        assert rows[0]["scores"]["seconds"]["signature"].endswith("compile:no")
        assert rows[0]["rerank"]["name"] == "mbr" and rows[0]["split"] == "validation"
        assert sum(bucket["sentences"] for bucket in rows[0]["by_length"]) == 20
        assert rows[0]["scores"]["bleu"] == rows[4]["scores"]["bleu"]  # the same model under two names

    def test_the_table_is_written_in_every_format(self, report):
        markdown = Path(f"{report}.md").read_text()
        assert "validation (de-en, 20 sentences)" in markdown and "- rerank: mbr" in markdown
        assert "- BLEURT is skipped: BLEURT needs TensorFlow" in markdown
        assert Path(f"{report}.csv").read_text().count("\n") == 9
        assert Path(f"{report}.png").read_bytes().startswith(b"\x89PNG")
        names = sorted(path.name for path in Path(f"{report}.rows").iterdir())
        assert names == [*(f"{i:02d}.txt" for i in range(1, 9)), "reference.txt"]

    def test_tables_reads_it(self, report, tmp_path, capsys):
        status, out, _ = run(capsys, "tables", f"{report}.json", "--metric", "chrf")
        assert status == 0 and out.startswith("**chrF**") and "| A | padir |" in out
        assert run(capsys, "tables", f"{report}.json", "--output", tmp_path / "t.md")[1] == ""
        assert "**BLEU**" in (tmp_path / "t.md").read_text()
        assert "no row has 'ter': name metrics that the files have (bleu, chrf" in refused(
            capsys, "tables", f"{report}.json", "--metric", "ter"
        )

    @pytest.mark.parametrize(("lines", "warned"), [(99, True), (100, False)])
    def test_compare_says_when_lines_are_too_few(self, tmp_path, capsys, lines, warned):
        for name in "abc":
            (tmp_path / name).write_text("".join(f"{name} runs {i}\n" for i in range(lines)))
        files = [str(tmp_path / name) for name in "abc"]
        command = ["compare", "--languages", "de-en", "--target", *files, "--set", "samples=100"]
        assert main(command) == 0
        assert ("99 lines are too few" in capsys.readouterr().err) == warned

    def test_compare_reads_its_hypotheses(self, report, tmp_path, capsys):
        command = ["compare", "--target", f"{report}.rows/reference.txt", "--languages", "de-en"]
        command += [f"{report}.rows/01.txt", f"{report}.rows/05.txt", "--set", "samples=100"]
        found, out = results(capsys, tmp_path / "results.json", *command)
        assert "baseline" in out and "BLEU: nrefs:1|bs:100" in out
        assert [r["p_value"] for r in found] == [None, 1.0] * 2


def test_score_writes_a_line_for_every_pair(built, causal, tmp_path, capsys):
    command = ["score", "--model", causal]
    command += ["--input", built / "validation.de", "--target", built / "validation.en"]
    found, out = results(capsys, tmp_path / "results.json", *command)
    lines = [line.split("\t") for line in out.splitlines()]
    targets = (built / "validation.en").read_text().splitlines()
    assert [int(line[1]) for line in lines] == [len(target.split()) + 1 for target in targets]
    assert all(float(total) / int(n) == pytest.approx(float(mean), abs=1e-3) for total, n, mean in lines)
    totals = sum(float(line[0]) for line in lines), sum(int(line[1]) for line in lines)
    assert found["pairs"] == 20 and found["mean"] == pytest.approx(totals[0] / totals[1], rel=1e-4)


class TestRefused:
    def test_score_of_files_of_unequal_length(self, built, causal, short, tmp_path, capsys):
        (tmp_path / "short.en").write_text("one\n")
        command = ["score", "--model", causal, "--input", built / "validation.de"]
        assert "20 sources need 20 targets, got 1" in refused(capsys, *command, "--target", tmp_path / "short.en")
        files = ["--input", built / "validation.de", "--target", built / "validation.en"]
        assert "gives targets no probability" in refused(capsys, "score", "--model", short, *files)

    def test_options_that_exclude_each_other(self, built, capsys):
        command = ["evaluate", "--model", built / "model", *corpus(built, "validation"), "--split", "validation"]
        mbr = "--rerank", "mbr", "--num_lengths", 2
        assert "length_normalization applies only to the rerank rules own, causal" in refused(
            capsys, *command, *mbr, "--length_normalization", 2
        )
        assert "holds no autoregressive model" in refused(
            capsys, *command, "--rerank", built / "model", "--num_lengths", 2
        )
        assert "is no BLEURT checkpoint" in refused(capsys, *command, "--metric", f"bleurt={built}")
        assert "metric must be bleurt=DIR, known_words=FILE or" in refused(capsys, *command, "--metric", "bleurt")
        assert "no metric os:nothing" in refused(capsys, *command, "--metric", "os:nothing")
        assert "or train with that noise" in refused(capsys, *command, "--gin.Decoding.canvas=@Mask()")

    def test_every_number_of_steps_before_any_work(self, built, capsys):
        command = ["evaluate", "--model", built / "model", "--data", built / "data", "--split", "validation"]
        assert "num_steps must be at least 1, got 0" in refused(capsys, *command, "--num_steps", 4, 0)

    def test_two_test_sets(self, built, capsys):
        command = ["evaluate", "--model", built / "model", "--data", built / "data"]
        message = "give either --data, or --task or files, not both"
        assert message in refused(capsys, *command, "--task", "toy_de_en")
        assert message in refused(capsys, *command, "--languages", "de-en", "--test", "a.de", "a.en")

    def test_tables_of_a_file_that_holds_no_rows(self, tmp_path, capsys):
        (tmp_path / "rows.json").write_text(json.dumps([{"scores": {}}]))
        assert "holds no rows" in refused(capsys, "tables", tmp_path / "rows.json")
