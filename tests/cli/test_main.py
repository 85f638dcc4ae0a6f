"""The command line: figures on stdout and in --json, one line out per line in, errors of a line or two."""

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
from support.small_corpus import Numbers
from support.tiny_model import TINY, prepared_numbers, random_model_dir

import padir
from padir.cli import build_parser, main
from padir.metrics.bleurt import MissingPackage

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A model directory, a prepared folder and its text as files."""
    folder = tmp_path_factory.mktemp("main")
    random_model_dir(folder)
    prepared_numbers(folder)
    for split in ("train", "validation"):
        for language, side in zip(("de", "en"), zip(*Numbers().pairs(split), strict=True), strict=True):
            (folder / f"{split}.{language}").write_text("".join(line + "\n" for line in side))
    return folder


def run(capsys, *arguments):
    """The exit status, stdout and stderr of a command."""
    capsys.readouterr()
    status = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def refused(capsys, *arguments):
    """The message of a command that must fail as bad input does."""
    status, out, errors = run(capsys, *arguments)
    assert status == 2 and out == ""
    lines = errors.splitlines()
    assert 1 <= len(lines) <= 2 and any(line.startswith("padir: error: ") for line in lines)
    return errors


def corpus(folder, *splits):
    return ["--languages", "de-en"] + [
        argument for s in splits for argument in (f"--{s}", folder / f"{s}.de", folder / f"{s}.en")
    ]


class TestCommands:
    def test_vocab(self, built, tmp_path, capsys):
        figures = tmp_path / "figures.json"
        command = ["vocab", *corpus(built, "train"), "--size", 301, "--output", tmp_path / "v.model", "--json", figures]
        status, _, errors = run(capsys, *command)
        assert status == 0 and "301 pieces and 100 sentinels" in errors
        assert json.loads(figures.read_text())["pieces"] == 301
        assert (tmp_path / "v.model").is_file()

    def test_prepare(self, built, tmp_path, capsys):
        figures = tmp_path / "figures.json"
        command = ["prepare", *corpus(built, "train", "validation"), "--vocab", built / "vocab.model"]
        status, out, _ = run(capsys, *command, "--output", tmp_path / "data", "--json", figures)
        assert status == 0 and "train" in out and "300" in out
        assert json.loads(figures.read_text())["splits"]["train"]["written"] == 300

    def test_train_then_evaluate_and_translate(self, built, tmp_path, capsys):
        sizes = {"width": 16, "heads": 2, "head_dim": 8, "mlp": 32, "encoder_layers": 1, "decoder_layers": 1}
        gin = [f"--gin.ModelConfig.{name}={size}" for name, size in sizes.items()]
        gin += ["--gin.train.model=@ModelConfig()", "--gin.ModelConfig.max_length=32", "--gin.train.num_steps=2"]
        gin += ["--gin.train.batching=@Batching()", "--gin.Batching.rows=4", "--gin.Batching.row_length=32"]
        gin += ["--gin.train.objective=@Objective()", "--gin.Objective.stage_weights=('all',)"]
        model, figures = tmp_path / "model", tmp_path / "figures.json"
        command = ["train", f"--gin.DATASET={built / 'data'}", "--model_dir", model, *gin, "--json", figures]
        status, out, errors = run(capsys, *command)
        assert status == 0 and out == ""
        assert "train.num_steps = 2" in errors and "train.num_steps = 2" in (model / "config.gin").read_text()
        assert json.loads(figures.read_text())["loss"] > 0

        command = ["evaluate", "--model", model, "--data", built / "data", "--split", "validation", "--num_steps", 1, 2]
        status, out, _ = run(capsys, *command, "--json", figures, "--hypotheses", tmp_path / "out.txt")
        assert status == 0 and "20 sentences" in out and "bleu: nrefs:1" in out
        rows = json.loads(figures.read_text())
        assert [row["num_steps"] for row in rows] == [1, 2]
        assert {"bleu", "chrf", "stutter", "passes"} <= set(rows[0]["scores"])
        assert rows[0]["scores"]["passes"]["value"] == 1.0
        assert (tmp_path / "out.txt").read_text().count("\n") == 20

    def test_distill_then_train_on_a_mixture_and_average(self, built, tmp_path, capsys):
        figures = tmp_path / "figures.json"
        command = ["distill", "--model", built / "model", "--data", built / "data", "--output", tmp_path / "distilled"]
        status, out, errors = run(capsys, *command, "--num_steps", 1, "--batch_size", 64, "--json", figures)
        assert status == 0 and "train" in out and "300" in out and "the teacher's BLEU on the validation split: " in out
        assert "distill: 300 of 300 sentences" in errors
        assert json.loads(figures.read_text())["distilled"]["decoding"]["num_steps"] == 1

        sizes = {"width": 16, "heads": 2, "head_dim": 8, "mlp": 32, "encoder_layers": 1, "decoder_layers": 1}
        gin = [f"--gin.ModelConfig.{name}={size}" for name, size in sizes.items()]
        gin += ["--gin.train.model=@ModelConfig()", "--gin.train.num_steps=2", "--gin.train.batching=@Batching()"]
        gin += ["--gin.Batching.rows=2", "--gin.train.objective=@Objective()", "--gin.Objective.stage_weights=('all',)"]
        gin += ["--gin.train.intervals=@Intervals()", "--gin.Intervals.checkpoint=1", "--gin.Intervals.evaluate=0"]
        gin += ["--gin.train.averaging=@Averaging()", "--gin.Averaging.kind=ema"]
        command = ["train", "--data", built / "data", tmp_path / "distilled", "--weights", 1, 0.5, *gin]
        assert run(capsys, *command, "--model_dir", tmp_path / "model")[0] == 0
        text = (tmp_path / "model" / "config.gin").read_text()
        assert "Averaging.kind = 'ema'" in text and "train.num_steps = 2" in text
        model = json.loads((tmp_path / "model" / "model.json").read_text())
        assert model["weights"] == {"kind": "ema", "steps": [2], "decay": 0.999}

        command = ["average", "--checkpoints", tmp_path / "model", "--last", 2, "--output", tmp_path / "mean"]
        status, _, errors = run(capsys, *command, "--json", figures)
        assert status == 0 and "mean of the last 2 checkpoints, steps 1, 2" in errors
        assert json.loads(figures.read_text()) == {"kind": "last", "steps": [1, 2], "decay": None}
        command = ["evaluate", "--model", tmp_path / "mean", "--data", built / "data", "--split", "validation"]
        status, out, _ = run(capsys, *command, "--num_steps", 1)
        assert status == 0 and "mean: mean of the last 2 checkpoints, steps 1, 2" in out

    def test_evaluate_files_with_the_reference_lengths(self, built, tmp_path, capsys):
        command = ["evaluate", "--model", built / "model", *corpus(built, "validation"), "--split", "validation"]
        status, out, _ = run(capsys, *command, "--oracle_lengths", "--num_steps", 1)
        assert status == 0 and "length_ratio" in out.lower().replace(" ", "_")


@pytest.fixture(scope="module")
def report(built, tmp_path_factory):
    output = tmp_path_factory.mktemp("report") / "x"
    command = ["evaluate", "--model", f"A={built / 'model'}", built / "model", "--output", output]
    command += ["--strategy", "padir", "mask_predict", *corpus(built, "validation"), "--split", "validation"]
    command += ["--num_steps", 2, "--oracle_lengths", "--bleurt", "bleurt", "--rerank", "mbr", "--draws", 2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("padir.metrics.bleurt.Bleurt.load", missing)
        assert main([str(argument) for argument in command]) == 0
    return output


class TestEvaluate:
    """One run with two models and two strategies, and what is made of its files."""

    def test_rows(self, built, report):
        rows = json.loads(Path(f"{report}.json").read_text())
        names = ["A", str(built / "model")]
        assert [(r["model"], r["strategy"]["name"], r["oracle_lengths"]) for r in rows] == [
            (name, strategy, oracle)
            for name in names
            for oracle in (False, True)
            for strategy in ("padir", "mask_predict")
        ]
        assert {"bleu", "length_recall_10", "oracle_gap", "seconds"} <= set(rows[0]["scores"])
        assert rows[0]["scores"]["seconds"]["signature"].endswith("compile:no")
        assert rows[0]["rerank"]["name"] == "mbr" and rows[0]["split"] == "validation"
        assert sum(bucket["sentences"] for bucket in rows[0]["by_length"]) == 20
        assert rows[0]["scores"]["bleu"] == rows[4]["scores"]["bleu"]  # the same model under two names

    def test_files(self, report):
        markdown = Path(f"{report}.md").read_text()
        assert "validation (de-en, 20 sentences)" in markdown and "- rerank: mbr" in markdown
        assert "- BLEURT is skipped: BLEURT needs TensorFlow" in markdown
        assert Path(f"{report}.csv").read_text().count("\n") == 9
        assert Path(f"{report}.png").read_bytes().startswith(b"\x89PNG")
        names = sorted(path.name for path in Path(f"{report}.rows").iterdir())
        assert names == [*(f"{i:02d}.txt" for i in range(1, 9)), "reference.txt"]

    def test_tables_of_it(self, report, tmp_path, capsys):
        status, out, _ = run(capsys, "tables", f"{report}.json", "--metrics", "chrf")
        assert status == 0 and out.startswith("**chrF**") and "| A | padir |" in out
        assert run(capsys, "tables", f"{report}.json", "--output", tmp_path / "t.md")[1] == ""
        assert "**BLEU**" in (tmp_path / "t.md").read_text()
        assert "no row has 'ter'" in refused(capsys, "tables", f"{report}.json", "--metrics", "ter")

    def test_comparing_two_of_its_rows(self, report, tmp_path, capsys):
        command = ["compare", "--references", f"{report}.rows/reference.txt", "--target_language", "en"]
        command += ["--hypotheses", f"{report}.rows/01.txt", f"{report}.rows/05.txt", "--samples", 100]
        status, out, _ = run(capsys, *command, "--json", tmp_path / "figures.json")
        assert status == 0 and "baseline" in out and "BLEU: nrefs:1|bs:100" in out
        assert [r["p_value"] for r in json.loads((tmp_path / "figures.json").read_text())] == [None, 1.0] * 2

    def test_refused(self, built, capsys):
        command = ["evaluate", "--model", built / "model", *corpus(built, "validation"), "--split", "validation"]
        assert "--length_weight belongs to --rerank own" in refused(
            capsys, *command, "--rerank", "mbr", "--length_weight", 1
        )
        assert "minimum Bayes risk ignores lengths" in refused(capsys, *command, "--rerank", "mbr", "--brevity", 1)
        assert "--brevity must be at least 0" in refused(capsys, *command, "--brevity", -1)
        assert "holds no autoregressive model" in refused(capsys, *command, "--rerank", built / "model")
        assert "is no BLEURT checkpoint" in refused(capsys, *command, "--bleurt", built)
        assert "has never seen its noise" in refused(capsys, *command, "--gin.Decoding.canvas=@Mask()")


def missing(folder):
    raise MissingPackage("BLEURT needs TensorFlow")


class TestScore:
    def test_a_line_for_every_pair(self, built, tmp_path, capsys):
        command = ["score", "--model", built / "model", "--num_steps", 2, "--json", tmp_path / "figures.json"]
        command += ["--source", built / "validation.de", "--target", built / "validation.en"]
        status, out, _ = run(capsys, *command)
        lines = [line.split("\t") for line in out.splitlines()]
        targets = (built / "validation.en").read_text().splitlines()
        assert status == 0 and [int(line[1]) for line in lines] == [len(target.split()) for target in targets]
        assert all(float(total) / int(n) == pytest.approx(float(mean), abs=1e-3) for total, n, mean in lines)
        figures = json.loads((tmp_path / "figures.json").read_text())
        assert figures["pairs"] == 20 and len(figures["stages"]) == 2 and figures["mean"] == figures["stages"][-1]

    def test_files_of_unequal_length(self, built, tmp_path, capsys):
        (tmp_path / "short.en").write_text("one\n")
        command = ["score", "--model", built / "model", "--source", built / "validation.de"]
        assert "got 20 sources and 1 targets" in refused(capsys, *command, "--target", tmp_path / "short.en")


def translate(built, tmp_path, capsys, content, *arguments):
    """Exit status, lines and stderr of `padir translate` for the bytes of a file."""
    (tmp_path / "in.txt").write_bytes(content)
    command = ["translate", "--model", built / "model", "--input", tmp_path / "in.txt", "--num_steps", 2, *arguments]
    status, _, errors = run(capsys, *command, "--output", tmp_path / "out.txt")
    lines = (tmp_path / "out.txt").read_bytes().decode("utf-8").split("\n")
    assert lines.pop() == ""
    return status, lines, errors


class TestTranslate:
    def test_one_line_out_for_every_line_in(self, built, tmp_path, capsys):
        content = b"\n".join(
            [
                b"\xef\xbb\xbfeins zwei\r",
                b"",
                b"eins \xff\xfe zwei",
                b"ein\x00s \x1b[31m",
                b"<extra_id_0> </s>",
                b"eins " * 60,
                "eins\u2028zwei\u0085drei".encode(),
                b"  \t",
                b"eins zwei",
                b"zwei drei",
            ]
        )
        status, lines, errors = translate(built, tmp_path, capsys, content)
        assert status == 0 and len(lines) == 10
        assert [i for i, line in enumerate(lines) if line == ""] == [1, 7]
        warnings = errors.splitlines()
        assert len(warnings) == 5 and all(line.startswith("padir: warning: line ") for line in warnings)
        assert "line 3 is not UTF-8 (byte 6)" in errors
        assert r"line 4 holds '\x00'" in errors and "line 5 holds '<extra_id_0>'" in errors
        assert r"line 7 holds '\x85'" in errors
        assert "line 6 is longer than the model takes" in errors

    def test_a_byte_order_mark_and_carriage_returns_change_nothing(self, built, tmp_path, capsys):
        _, plain, _ = translate(built, tmp_path, capsys, b"eins zwei\ndrei\n")
        _, windows, errors = translate(built, tmp_path, capsys, b"\xef\xbb\xbfeins zwei\r\ndrei\r\n")
        assert windows == plain and errors == ""

    def test_an_empty_file(self, built, tmp_path, capsys):
        status, lines, errors = translate(built, tmp_path, capsys, b"", "--json", tmp_path / "figures.json")
        assert (status, lines, errors) == (0, [], "")
        figures = json.loads((tmp_path / "figures.json").read_text())
        assert figures == {"translations": [], "lines": 0, "passes": 0.0}

    def test_standard_input_to_standard_output(self, built, tmp_path, monkeypatch):
        (tmp_path / "in.txt").write_bytes(b"eins\n\nzwei drei\n")
        with (tmp_path / "in.txt").open() as source, (tmp_path / "out.txt").open("w", encoding="ascii") as out:
            monkeypatch.setattr("sys.stdin", source)
            monkeypatch.setattr("sys.stdout", out)
            assert main(["translate", "--model", str(built / "model"), "--num_steps", "2"]) == 0
        lines = (tmp_path / "out.txt").read_bytes().decode("utf-8").split("\n")
        assert len(lines) == 4 and lines[1] == lines[3] == "" and lines[0]

    def test_what_is_no_regular_file_is_written_to_and_not_replaced(self, built, tmp_path, capsys):
        (tmp_path / "in.txt").write_text("eins\n")
        (tmp_path / "link.txt").symlink_to(tmp_path / "target.txt")
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        command = ["translate", "--model", built / "model", "--input", tmp_path / "in.txt", "--num_steps", 2]
        for name in ("link.txt", "pipe"):
            assert run(capsys, *command, "--output", tmp_path / name)[0] == 0
        assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "pipe").is_fifo()
        assert os.read(reader, 1_000) == (tmp_path / "target.txt").read_bytes() != b""
        os.close(reader)

    def test_options_reach_the_decoder(self, built, tmp_path, capsys):
        content = b"eins zwei drei\nvier\n"
        figures = tmp_path / "figures.json"
        options = ["--strategy", "threshold:tau=1", "--top_k", 2, "--offsets", 0, 1, "--draws", 2, "--seed", 5]
        status, lines, _ = translate(built, tmp_path, capsys, content, *options, "--json", figures, "--batch_size", 1)
        assert status == 0 and len(lines) == 2
        read = json.loads(figures.read_text())
        assert (read["lines"], read["passes"]) == (2, 2.0)
        gin = ["--gin.Decoding.num_steps=3", "--gin.Decoding.strategy=@MaskPredict()"]
        gin += ["--gin.Decoding.rerank=@OwnScore()", "--gin.OwnScore.brevity=0.5"]
        (tmp_path / "in.txt").write_bytes(content)
        command = ["translate", "--model", built / "model", "--input", tmp_path / "in.txt", *gin, "--json", figures]
        assert run(capsys, *command, "--output", tmp_path / "out.txt")[0] == 0
        assert json.loads(figures.read_text())["passes"] == 3.0

    def test_json_has_every_translation(self, built, tmp_path, capsys):
        figures = tmp_path / "figures.json"
        content = 'eins "zwei"\t\0\n\n👩‍👩‍👧‍👦 \u2028\n'.encode() + b"eins " * 60
        status, lines, _ = translate(built, tmp_path, capsys, content, "--json", figures)
        read = json.loads(figures.read_text())
        assert status == 0 and [row["text"] for row in read["translations"]] == lines
        assert [row["source"] for row in read["translations"]] == content.decode().split("\n")
        assert [row["truncated"] for row in read["translations"]] == [False, False, True, True]
        assert read["translations"][1] == {
            **{"source": "", "score": 0.0, "text": "", "length": 1, "passes": 0, "hypotheses": 0, "truncated": False}
        }
        assert read["lines"] == 4 and read["passes"] == sum(row["passes"] for row in read["translations"]) / 4

    def test_a_gzip_file(self, built, tmp_path, capsys):
        (tmp_path / "in.gz").write_bytes(gzip.compress(b"eins zwei\ndrei\n"))
        _, plain, _ = translate(built, tmp_path, capsys, b"eins zwei\ndrei\n")
        command = ["translate", "--model", built / "model", "--num_steps", 2, "--output", tmp_path / "out.txt"]
        assert run(capsys, *command, "--input", tmp_path / "in.gz")[0] == 0
        assert (tmp_path / "out.txt").read_text().split("\n")[:-1] == plain

    def test_the_page_shows_the_first_translations(self, built, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr("padir.cli.translating._SHOWN", 2)
        content = b"eins\nzwei\ndrei\n"
        _, lines, errors = translate(built, tmp_path, capsys, content, "--html", tmp_path / "page.html")
        assert len(lines) == 3 and "page.html shows the first 2 translations" in errors
        assert (tmp_path / "page.html").read_text().count("<article") == 2

    def test_gin_of_one_call_does_not_reach_the_next(self, built, tmp_path, capsys):
        translate(built, tmp_path, capsys, b"eins\n", "--gin.Decoding.batch_size=7")
        refused(capsys, "translate", "--model", built / "model", "--gin.Decoding.num_steps=0")
        assert translate(built, tmp_path, capsys, b"eins\n")[0] == 0

    def test_trace_and_html(self, built, tmp_path, capsys):
        page, figures = tmp_path / "page.html", tmp_path / "figures.json"
        options = ["--trace", "--html", page, "--json", figures]
        status, lines, errors = translate(built, tmp_path, capsys, b"eins <b> zwei\n\nvier\n", *options)
        assert status == 0 and len(lines) == 3
        assert "eins <b> zwei" in errors and "vier" in errors
        html = page.read_text()
        assert html.lower().startswith("<!doctype html>") and "eins &lt;b&gt; zwei" in html and "<b> zwei" not in html
        assert json.loads(figures.read_text())["lines"] == 3


@pytest.fixture(scope="module")
def causal(tmp_path_factory):
    """The model directory of an autoregressive model."""
    return random_model_dir(tmp_path_factory.mktemp("causal"), causal=True)


class TestAutoregressive:
    def test_evaluate_says_which_search(self, built, causal, tmp_path, capsys):
        command = ["evaluate", "--model", causal, "--data", built / "data", "--split", "validation"]
        for options, searches in (
            (["--beam", 2, 1, "--length_penalty", 0], [["beam", 2, 0.0], ["beam", 1, 0.0]]),
            (
                ["--sample", 0.5, "--gin.Decoding.search=@Sampling()", "--gin.Sampling.size=3"],
                [["sampling", 0.5, 0, 1.0, 3]],
            ),
        ):
            status, out, _ = run(capsys, *command, *options, "--json", tmp_path / "figures.json")
            rows = json.loads((tmp_path / "figures.json").read_text())
            assert status == 0 and [list(row["search"].values()) for row in rows] == searches
            assert all(row["num_steps"] is None for row in rows)
        assert "weights of" in out

    def test_translate(self, causal, tmp_path, capsys):
        (tmp_path / "in.txt").write_text("eins zwei\n\ndrei\n")
        command = ["translate", "--model", causal, "--input", tmp_path / "in.txt", "--output", tmp_path / "out.txt"]
        assert run(capsys, *command, "--beam", 2)[0] == 0
        lines = (tmp_path / "out.txt").read_text().split("\n")
        assert len(lines) == 4 and lines[1] == lines[3] == "" and lines[0] and lines[2]
        assert "no steps to trace" in refused(capsys, *command, "--trace")

    @pytest.mark.parametrize(
        "options", [["--num_steps", 4], ["--strategy", "padir"], ["--top_k", 1], ["--offsets", 0], ["--draws", 1]]
    )
    def test_options_of_drafts_are_refused_even_at_their_defaults(self, built, causal, tmp_path, capsys, options):
        message = f"refines no draft, so that {options[0]} means nothing to it"
        assert message in refused(capsys, "translate", "--model", causal, *options)
        data = ["--data", built / "data", "--split", "validation"]
        assert message in refused(capsys, "evaluate", "--model", causal, *data, *options)
        gin = ["--gin.train.model=@ModelConfig()", "--gin.ModelConfig.causal=True", "--gin.train.num_steps=1"]
        gin += ["--gin.train.objective=@TeacherForcing()"]
        assert message in refused(
            capsys, "train", "--data", built / "data", "--model_dir", tmp_path / "m", *gin, *options
        )
        assert not (tmp_path / "m").exists()

    @pytest.mark.parametrize("options", [["--beam", 5], ["--length_penalty", 0.6], ["--sample", 1.0]])
    def test_options_of_searches_are_refused_by_models_that_refine(self, built, capsys, options):
        message = f"the model refines drafts: {options[0]} is for autoregressive models"
        assert message in refused(capsys, "translate", "--model", built / "model", *options)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--beam", 0], "error: --beam must be at least 1, got 0"),
            (["--sample", 0], "error: --sample must be above 0"),
            (["--sample", "nan"], "--sample must be above 0 and finite, got nan"),
            (["--length_penalty", "nan"], "--length_penalty must be at least 0 (0: no length penalty) and finite"),
            (["--rerank", "mbr"], "refines no draft, so that --rerank means nothing to it"),
            (["--sample", 1, "--beam", 5], "give either --sample or --beam"),
        ],
    )
    def test_wrong_searches(self, causal, capsys, options, message):
        assert message in refused(capsys, "translate", "--model", causal, *options)


class TestPlaces:
    """Where nothing can be written is told before the work, here before a model is looked for."""

    @pytest.mark.parametrize(
        "arguments",
        [
            ["evaluate", "--task", "toy_de_en", "--output"],
            ["evaluate", "--task", "toy_de_en", "--hypotheses"],
            ["translate", "--html"],
            ["score", "--source", "x", "--target", "x", "--json"],
            ["analyse", "attention", "--output"],
        ],
    )
    def test_are_tried_before_the_work(self, arguments, tmp_path, capsys):
        (tmp_path / "file").touch()
        assert main([*arguments, str(tmp_path / "file" / "new" / "x"), "--model", "no_such_model"]) == 2
        assert (
            f"cannot write {tmp_path / 'file' / 'new' / 'x'} (Not a directory): give another" in capsys.readouterr().err
        )
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_a_folder_is_no_file(self, tmp_path, capsys):
        assert main(["translate", "--model", "no_such_model", "--json", str(tmp_path)]) == 2
        assert f"cannot write {tmp_path} (Is a directory)" in capsys.readouterr().err

    def test_a_pipe_is_written_to(self):
        """A shell's /dev/stdout leads to a pipe, whose own name is no path."""
        code = (
            "from padir.storage.files import check_writable, write_text; path = '/dev/stdout';"
            " check_writable(path, file=True); write_text(path, 'x')"
        )
        assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout == "x"

    def test_folders_may_be_made(self, tmp_path, capsys):
        assert main(["translate", "--model", "no_such_model", "--json", str(tmp_path / "a" / "b")]) == 2
        assert "no_such_model" in capsys.readouterr().err
        assert not list(tmp_path.iterdir())


class TestRefused:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--num_steps", 0], "--num_steps must be at least 1, got 0"),
            (["--top_k", 0], "--top_k must be at least 1, got 0"),
            (["--draws", 0], "--draws must be at least 1, got 0"),
            (["--batch_size", 0], "batch_size must be at least 1"),
            (["--strategy", "guess"], "no strategy is called 'guess': choose one of padir"),
            (["--strategy", "threshold:tua=1"], "threshold has no hyperparameter 'tua': it has tau: float"),
            (["--strategy", "easy_first"], "easy_first needs a decontextualised decoder"),
            (["--gin.Decodign.num_steps=3"], "did you mean 'Decoding'?"),
            (["--gin.Decoding.num_stepz=3"], "did you mean 'num_steps'?"),
            (["--gin.Decoding.num_steps=0"], "num_steps must be at least 1, got 0"),
            (["--gin.Decoding.num_steps"], "lacks a value"),
            (["--gin_file", "no_such.gin"], "a gin file is missing"),
            (["--gin_file", "configs"], "--gin_file configs: a gin file is missing"),
            (["--gin_file", "README.md"], "--gin_file README.md cannot be read as gin configuration, line 3"),
            (["--input", "no_such.txt"], "cannot read --input no_such.txt (No such file or directory)"),
            (["--input", "."], "cannot read --input . (Is a directory)"),
            (["--keep", 0], "--keep must be at least 1 (hypotheses that go on), got 0"),
            (["--num_steps", 2**31], "--num_steps must be below 2**31"),
            (["--offsets", 500], "--offsets must be in -22 .. 22, as the model writes 24 tokens at most, got 500"),
            (["--offsets", 0, -23], "got -23"),
            (
                ["--brevity", "nan"],
                "--brevity must be at least 0 (1 is the mean per token, 0 the sum) and finite, got nan",
            ),
            (["--brevity", "inf"], "and finite, got inf"),
            (["--length_weight", "nan"], "--length_weight must be at least 0 and finite, got nan"),
            (["--rerank", "mbr"], "--rerank chooses among several hypotheses of a sentence, got one"),
            (["--rerank", "mbr", "--offsets", 0, 0], "got one: give it more (--top_k, --offsets or --draws)"),
            (["--gin.Decoding.canvas=@Mask()"], "has never seen its noise: leave the canvas out"),
        ],
    )
    def test_options_of_translate(self, built, tmp_path, capsys, arguments, message):
        (tmp_path / "in.txt").write_text("eins\n")
        out, figures = tmp_path / "out" / "out.txt", tmp_path / "figures.json"
        command = ["translate", "--model", built / "model", "--input", tmp_path / "in.txt", *arguments]
        assert message in refused(capsys, *command, "--output", out, "--json", figures)
        assert not figures.exists() and not list(tmp_path.rglob("*out.txt*"))

    def test_a_missing_gin_file_is_told_of_once(self, tmp_path):
        (tmp_path / "mine.gin").write_text("include 'nowhere.gin'\n")
        for name, told in (("nowhere.gin", "nowhere.gin"), (tmp_path / "mine.gin", "nowhere.gin")):
            process = command("translate", "--gin_file", name, stderr=subprocess.PIPE, text=True)
            _, errors = process.communicate(timeout=60)
            assert process.returncode == 2 and told in errors
            assert errors.count("\n") == 1 and "ERROR" not in errors

    def test_a_model_that_is_no_folder(self, tmp_path, capsys):
        (tmp_path / "w").write_text("weights?")
        for name in (tmp_path / "w", tmp_path / "nowhere"):
            assert f"there is no model directory {name}" in refused(capsys, "translate", "--model", name)

    def test_a_model_directory_that_is_not_whole(self, built, tmp_path, capsys):
        model = shutil.copytree(built / "model", tmp_path / "model")
        (model / "manifest.json").unlink()
        assert "it is not whole" in refused(capsys, "translate", "--model", model)
        assert "no model directory" in refused(capsys, "translate", "--model", tmp_path / "nothing")

    def test_files_of_unequal_length(self, built, tmp_path, capsys):
        (tmp_path / "short.en").write_text("one\n")
        files = ["--languages", "de-en", "--train", built / "train.de", tmp_path / "short.en"]
        command = ["prepare", *files, "--vocab", built / "vocab.model", "--output", tmp_path / "data"]
        assert "has 300 lines but" in refused(capsys, *command)
        assert [path.name for path in tmp_path.iterdir()] == ["short.en"]

    def test_a_missing_vocabulary(self, built, tmp_path, capsys):
        command = ["prepare", *corpus(built, "train"), "--vocab", tmp_path / "no.model", "--output", tmp_path / "data"]
        assert "cannot read the vocabulary" in refused(capsys, *command)
        assert not list(tmp_path.iterdir())

    def test_a_foreign_vocabulary(self, built, tmp_path, capsys):
        data = shutil.copytree(built / "data", tmp_path / "data")
        content = bytearray((data / "vocab.model").read_bytes())
        content[content.index(b"sieben")] ^= 1
        (data / "vocab.model").write_bytes(content)
        errors = refused(capsys, "train", "--data", data, "--model_dir", tmp_path / "model", "--gin.train.num_steps=1")
        assert "vocab.model was changed or damaged (its sha256 differs)" in errors
        assert not (tmp_path / "model").exists()

    def test_training_without_folders(self, built, capsys):
        assert "no data: give --data DIR, or --gin.DATASET=DIR" in refused(capsys, "train")
        assert "no model_dir" in refused(capsys, "train", "--data", built / "data")
        command = ["train", "--data", built / "data", built / "data", "--weights", 1, "--model_dir", built / "never"]
        assert "2 folders need as many weights, got 1" in refused(capsys, *command)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--task", "wmt99_de_en"], "unknown source 'wmt99_de_en': known are toy_de_en"),
            (["--task", "multi30k_de_en", "--data_dir", "nowhere"], "neither nowhere"),
            ([], "no corpus: give --task NAME"),
            (["--gin.ModelConfig.width=8"], "no corpus: give --task NAME"),
            (["--train", "a.tsv"], "files need --languages SRC-TGT"),
            (["--train", "a.tsv", "--languages", "de"], "files need --languages SRC-TGT"),
            (["--train", "a", "b", "c", "--languages", "de-en"], "takes one .tsv file or two"),
            (["--train", "no_such.tsv", "--languages", "de-en"], "no file no_such.tsv"),
            (["--train", "x.tsv", "--task", "toy_de_en"], "either --task or files"),
        ],
    )
    def test_no_corpus(self, tmp_path, capsys, arguments, message):
        assert message in refused(capsys, "vocab", *arguments, "--output", tmp_path / "v.model")
        assert not list(tmp_path.iterdir())

    def test_a_corpus_without_text(self, built, tmp_path, capsys):
        (tmp_path / "test.tsv").write_text("")
        files = ["--languages", "de-en", "--test", tmp_path / "test.tsv"]
        assert "is empty: give a file" in refused(capsys, "evaluate", "--model", built / "model", *files)
        assert "test" in refused(capsys, "evaluate", "--model", built / "model", "--data", built / "data")

    def test_training_checks_how_it_will_validate(self, built, tmp_path, capsys):
        command = ["train", "--data", built / "data", "--model_dir", tmp_path / "model"]
        assert "rejecter needs a rejecter head" in refused(capsys, *command, "--strategy", "rejecter")
        assert "--beam is for autoregressive models" in refused(capsys, *command, "--beam", 2)
        gin = ["--gin.ModelConfig.width=8", "--gin.Mask.rate=0.5"]
        assert "--gin.Mask.rate has no effect" in refused(capsys, *command, *gin)
        assert not (tmp_path / "model" / "checkpoints").exists()

    def test_two_test_sets(self, built, capsys):
        command = ["evaluate", "--model", built / "model", "--data", built / "data"]
        message = "give either --data, or --task or files, not both"
        assert message in refused(capsys, *command, "--task", "toy_de_en")
        assert message in refused(capsys, *command, "--languages", "de-en", "--test", "a.de", "a.en")

    def test_figures_that_no_file_has(self, tmp_path, capsys):
        row = {
            "num_steps": 1,
            "top_k": 1,
            "offsets": [0],
            "draws": 1,
            "scores": {"bleu": {"value": 1, "signature": ""}},
        }
        (tmp_path / "rows.json").write_text(json.dumps([row]))
        assert "no row has 'chrff': name metrics that the files have (bleu)" in refused(
            capsys, "tables", tmp_path / "rows.json", "--metrics", "bleu", "chrff"
        )
        del row["top_k"]
        (tmp_path / "rows.json").write_text(json.dumps([row]))
        assert "holds no rows" in refused(capsys, "tables", tmp_path / "rows.json")

    def test_evaluating_checks_every_number_first(self, built, capsys):
        command = ["evaluate", "--model", built / "model", "--data", built / "data", "--split", "validation"]
        assert "num_steps must be at least 1, got 0" in refused(capsys, *command, "--num_steps", 4, 0)

    @pytest.mark.parametrize("arguments", [[], ["fly"], ["translate", "--model", "m", "--num_steps", "x"]])
    def test_usage(self, capsys, arguments):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2 and "usage: padir" in capsys.readouterr().err


def command(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen([sys.executable, "-m", "padir", *map(str, arguments)], env=environment, **options)


class TestBenchmark:
    def test_models_on_a_test_set(self, built, causal, tmp_path, capsys):
        command = ["benchmark", "--model", f"refines={built / 'model'}", f"writes={causal}"]
        command += [*corpus(built, "validation"), "--split", "validation", "--num_steps", 1, 2, "--beam", 1]
        command += ["--sentences", 4, "--repeats", 1, "--batch_size", 1, 4, "--output", tmp_path / "x"]
        status, out, errors = run(capsys, *command)
        assert status == 0 and "milliseconds of each stage" in out and "sentences/s" in errors
        figures = json.loads((tmp_path / "x.json").read_text())
        rows = figures["rows"]
        assert [(row["model"], row["batch_size"], row["num_steps"]) for row in rows] == [
            (name, size, steps) for size in (1, 4) for name, steps in (("refines", 1), ("refines", 2), ("writes", None))
        ]
        assert rows[0]["scores"]["ratio"]["value"] == rows[3]["scores"]["ratio"]["value"] == 1
        assert all(row["scores"]["bleu"]["signature"].startswith("nrefs:1") for row in rows)
        assert figures["environment"]["versions"]["jax"] and figures["environment"]["cores"]
        assert "refines" in (tmp_path / "x.md").read_text() and (tmp_path / "x.png").stat().st_size > 0

    def test_random_weights(self, tmp_path, capsys):
        sizes = {"width": 16, "heads": 2, "head_dim": 8, "mlp": 32, "encoder_layers": 1, "decoder_layers": 1}
        lines = [f"ModelConfig.{name} = {size}" for name, size in sizes.items()]
        (tmp_path / "small.gin").write_text("\n".join(lines))
        (tmp_path / "causal.gin").write_text("\n".join([*lines, "ModelConfig.causal = True"]))
        command = ["benchmark", "--random", f"ar={tmp_path / 'causal.gin'}", f"padir={tmp_path / 'small.gin'}"]
        command += ["--vocab_size", 400, "--tokens", 9, "--batch_size", 2, "--sentences", 2, "--repeats", 1]
        command += ["--precision", "float32", "int8"]
        status, _, _ = run(capsys, *command, "--top_k", 2, "--beam", 1, "--json", tmp_path / "x.json")
        assert status == 0
        rows = json.loads((tmp_path / "x.json").read_text())["rows"]
        assert [(row["model"], row["draws"], row["scores"]["tokens"]["value"]) for row in rows] == [
            ("ar", None, 9),
            ("ar, int8", None, 9),
            ("padir", 2, 9),
            ("padir, int8", 2, 9),
        ]
        memory = [row["scores"].get("temporaries_mb", {"value": None})["value"] for row in rows]
        assert memory[:2] == [None, None] and all(size > 0 for size in memory[2:])

    def test_training_steps(self, built, tmp_path, capsys, monkeypatch):
        gin = [f"--gin.ModelConfig.{name}=16" for name in ("width", "mlp")] + ["--gin.ModelConfig.max_length=32"]
        gin += [
            "--gin.train.model=@ModelConfig()",
            *(f"--gin.ModelConfig.{side}_layers=1" for side in ("encoder", "decoder")),
        ]
        gin += ["--gin.train.batching=@Batching()", "--gin.Batching.rows=4", "--gin.Batching.row_length=32"]
        command = ["benchmark", "--train", 1, "--data", built / "data", *gin, "--output", tmp_path / "x"]
        status, out, _ = run(capsys, *command)
        assert status == 0 and "tokens_per_second" in out
        figures = json.loads((tmp_path / "x.json").read_text())["figures"]
        assert 0 < figures["padding_share"] < 1 and figures["tokens_per_second"] > 0 and figures["temporary_mb"] > 0
        assert "temporary_mb" in out and "not known" not in out

        measured = types.SimpleNamespace(figures={"step_ms": 12345.6, "temporary_mb": None}, step_seconds=(1.0,))
        monkeypatch.setattr("padir.benchmark.training.measure", lambda *args, **settings: measured)
        status, out, _ = run(capsys, *command)
        assert status == 0 and "12,346" in out and "not known" in out
        assert json.loads((tmp_path / "x.json").read_text())["figures"]["temporary_mb"] is None

    def test_what_it_refuses(self, built, tmp_path, capsys):
        random = ["benchmark", "--random", "a=b.gin"]
        assert "give either --random, or models" in refused(capsys, *random, "--model", built / "model")
        assert "takes NAME=GIN" in refused(capsys, "benchmark", "--random", "b.gin")
        assert "give its --gin_file" in refused(capsys, "benchmark", "--train", 3)
        command = ["benchmark", "--model", built / "model", *corpus(built, "validation"), "--split", "validation"]
        assert "wants 64 sentences, got 20" in refused(capsys, *command)
        assert "repeats" in refused(capsys, *command, "--sentences", 4, "--batch_size", 4, "--repeats", 0)


def test_a_vocabulary_of_files_that_do_not_match_is_refused_in_plain_words(tmp_path, capsys):
    for name, lines in (("a.de", 3), ("b.en", 2)):
        (tmp_path / name).write_text("eins zwei\n" * lines)
    files = ["--languages", "de-en", "--train", tmp_path / "a.de", tmp_path / "b.en"]
    errors = refused(capsys, "vocab", *files, "--size", 300, "--output", tmp_path / "v.model")
    assert "3 lines" in errors and "Traceback" not in errors and "INTERNAL" not in errors
    assert "size must be at least 1, got -5" in refused(
        capsys, "vocab", "--task", "toy_de_en", "--size", -5, "--output", tmp_path / "v.model"
    )


def test_few_commands_take_words_that_no_option_names():
    """An option that loses its name, as when two parsers share it and one takes it away, is read as such a word."""
    known = {"tables": ["files"], "ising": ["subject"], "analyse": ["subject"], "t5x": ["action"]}
    (commands,) = (action for action in build_parser()._actions if action.dest == "command")
    for name, command in commands.choices.items():
        nameless = [action.dest for action in command._actions if not action.option_strings]
        assert nameless == known.get(name, [])


def test_a_reader_that_goes_away_ends_it_quietly(built, tmp_path):
    (tmp_path / "in.txt").write_text("eins zwei\n" * 2000)
    process = command(
        *("translate", "--model", built / "model", "--num_steps", 1, "--input", tmp_path / "in.txt"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with contextlib.closing(process.stdout):
        assert process.stdout.readline()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141 and errors == ""


def test_version(capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0 and capsys.readouterr().out == f"padir {padir.__version__}\n"


def test_help_names_every_command_and_loads_no_jax():
    process = command("--help", stdout=subprocess.PIPE, text=True)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    names = "vocab prepare train average evaluate benchmark tables compare score translate distill"
    assert all(name in out for name in names.split())


def test_tiny_is_what_the_model_directory_says(built):
    assert json.loads((built / "model" / "model.json").read_text())["config"]["width"] == TINY.width
