"""`padir translate`: one line out for each line in, options, traces, and what is refused."""

import gzip
import json
import os
import shutil
from types import SimpleNamespace

import pytest
from support.commands import refused, results, run

from padir.cli import main
from padir.decoding.options import Decoding
from padir.decoding.translation import Translation
from padir.evaluation.rows import hypotheses, label
from padir.streaming import translate_lines
from padir.translator import Translator

EMPTY = "empty translations of lines with words: {}, the first of line {}: check their language"


@pytest.fixture
def translate(tmp_path, capsys):
    """A function that gives exit status, lines and stderr of `padir translate` for the bytes of a file."""

    def translate(folder, content, options=""):
        (tmp_path / "in.txt").write_bytes(content)
        command = f"translate --model {folder}/model --input {tmp_path}/in.txt --num_steps 2 {options}"
        status, _, errors = run(capsys, f"{command} --output {tmp_path}/out.txt")
        lines = (tmp_path / "out.txt").read_bytes().decode("utf-8").split("\n")
        assert lines.pop() == ""
        return status, lines, errors

    return translate


class Silent(Translator):
    """Writes nothing where a text has an x, and the text elsewhere."""

    card = None  # of an instance, in place of its loaded model's

    def __init__(self):
        self.card = SimpleNamespace(source_language="de", target_language="en")

    def translate(self, texts, decoding, **options):
        return [Translation("" if "x" in text else text, 0.0, 1, 1) for text in texts]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("lines", "split", "lost"),
    [
        (["a", "", "x", "a", "x!", "xx"], False, (3, 3)),
        (["", "5 x 7"], False, (1, 2)),
        (["a. x. B.", "Nix. Nix."], True, (2, 1)),
        (["a", "", "  ", "5"], False, None),
    ],
)
def test_empty_translations_of_words_are_told_once(lines, split, lost):
    warned = []
    chunks = translate_lines(Silent(), lines, Decoding(batch_size=1), warn=warned.append, split=split)
    assert sum(map(len, chunks)) == len(lines)
    assert warned == ([EMPTY.format(*lost)] if lost else [])


class TestTranslate:
    def test_one_line_out_for_every_line_in(self, long, translate):
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
        status, lines, errors = translate(long, content)
        assert status == 0 and len(lines) == 10
        assert [i for i, line in enumerate(lines) if line == ""] == [1, 7]
        warnings = errors.splitlines()
        assert len(warnings) == 5 and all(line.startswith("padir: warning: line ") for line in warnings)
        assert "line 3 is not UTF-8 (byte 6)" in errors and "iconv" in errors
        assert r"line 4 holds '\x00'" in errors and "line 5 holds '<extra_id_0>'" in errors
        assert r"line 7 holds '\x85'" in errors
        assert "line 6 is longer than the model takes" in errors

    def test_input_that_is_no_text_prints_a_few_warnings(self, built, translate):
        for _ in range(2):  # a second command counts anew
            status, lines, errors = translate(built, b"\xff <s>\n\xff </s>\n\xff <pad>\n" * 40)
            assert status == 0 and len(lines) == 120
            for kind in ("is not UTF-8", "holds"):  # whatever a line has there
                warnings = [line for line in errors.splitlines() if kind in line]
                assert [int(line.split()[3]) for line in warnings] == [1, 2, 3, 10, 100]
                assert "(100 such warnings so far; " in warnings[-1]

    def test_line_ends_a_byte_order_mark_and_gzip_change_nothing(self, built, tmp_path, capsys, translate):
        _, plain, told = translate(built, b"eins zwei\ndrei\n")
        _, windows, errors = translate(built, b"\xef\xbb\xbfeins zwei\r\ndrei\r\n")
        assert windows == plain and errors == told
        (tmp_path / "in.gz").write_bytes(gzip.compress(b"eins zwei\ndrei\n"))
        command = f"translate --model {built}/model --num_steps 2 --output {tmp_path}/out.txt --input {tmp_path}/in.gz"
        assert run(capsys, command)[0] == 0
        assert (tmp_path / "out.txt").read_text().split("\n")[:-1] == plain

    def test_a_text_that_cannot_be_written_is_refused(self, built, capsys):
        """A byte of the command line that is no UTF-8, beside no letter."""
        assert "without surrogates" in refused(capsys, f"translate --model {built}/model", "5 \udcff")

    def test_an_empty_file(self, built, tmp_path, translate):
        status, lines, errors = translate(built, b"", f"--json {tmp_path}/figures.json")
        assert (status, lines, errors) == (0, [], "")
        figures = json.loads((tmp_path / "figures.json").read_text())
        assert figures == {"translations": [], "lines": 0, "passes": 0.0}

    def test_standard_input_to_standard_output(self, built, tmp_path, monkeypatch):
        (tmp_path / "in.txt").write_bytes(b"eins\n\nzwei drei\n")
        with (tmp_path / "in.txt").open() as source, (tmp_path / "out.txt").open("w", encoding="ascii") as out:
            monkeypatch.setattr("sys.stdin", source)
            monkeypatch.setattr("sys.stdout", out)
            assert main(f"translate --model {built}/model --num_steps 2".split()) == 0
        lines = (tmp_path / "out.txt").read_bytes().decode("utf-8").split("\n")
        assert len(lines) == 4 and lines[1] == lines[3] == "" and lines[0]

    def test_what_is_no_regular_file_is_written_to_and_not_replaced(self, built, tmp_path, capsys):
        (tmp_path / "in.txt").write_text("eins\n")
        (tmp_path / "link.txt").symlink_to(tmp_path / "target.txt")
        os.mkfifo(tmp_path / "pipe")
        reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        command = f"translate --model {built}/model --input {tmp_path}/in.txt --num_steps 2"
        for name in ("link.txt", "pipe"):
            assert run(capsys, f"{command} --output {tmp_path}/{name}")[0] == 0
        assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "pipe").is_fifo()
        assert os.read(reader, 1_000) == (tmp_path / "target.txt").read_bytes() != b""
        os.close(reader)

    def test_json_has_every_translation(self, long, tmp_path, translate):
        figures = tmp_path / "figures.json"
        content = 'eins "zwei"\t\0\n\n👩‍👩‍👧‍👦 \u2028\n'.encode() + b"eins " * 60
        status, lines, _ = translate(long, content, f"--json {figures}")
        read = json.loads(figures.read_text())
        assert status == 0 and [row["text"] for row in read["translations"]] == lines
        assert [row["source"] for row in read["translations"]] == content.decode().split("\n")
        assert [row["truncated"] for row in read["translations"]] == [False, False, False, True]
        assert read["translations"][1] == {
            **{"source": "", "score": 0.0, "text": "", "length": 1, "passes": 0, "hypotheses": 0, "truncated": False}
        }
        assert read["lines"] == 4 and read["passes"] == sum(row["passes"] for row in read["translations"]) / 4

    def test_sentences_on_the_command_line(self, built, tmp_path, capsys, translate):
        _, lines, told = translate(built, b"eins zwei\ndrei\n")
        command = f"translate --model {built}/model --num_steps 2"
        assert run(capsys, command, "eins zwei", "drei") == (0, "".join(line + "\n" for line in lines), told)
        assert "a file of this name: --input translates its lines" in run(capsys, f"{command} {tmp_path}/in.txt")[2]
        assert "--n_best lists candidates in JSON: give --jsonl" in refused(capsys, f"{command} eins --n_best 1")

    def test_the_input_is_not_replaced(self, built, tmp_path, capsys):
        (tmp_path / "in.txt").write_text("eins\n")
        (tmp_path / "link.txt").symlink_to(tmp_path / "in.txt")
        command = f"translate --model {built}/model --input"
        for output in ("in.txt", "link.txt"):
            errors = refused(capsys, f"{command} {tmp_path}/in.txt --output {tmp_path}/{output}")
            assert "would replace the file of --input" in errors
        assert (tmp_path / "in.txt").read_text() == "eins\n"
        for words in (command, f"{command} {tmp_path}/in.txt --output"):
            assert 'take the name of a file, got ""' in refused(capsys, words, "")

    def test_json_lines_with_candidates(self, built, tmp_path, translate):
        figures = tmp_path / "figures.json"
        options = f"--jsonl --num_drafts 2 --num_lengths 2 --n_best 3 --json {figures}"
        _, lines, _ = translate(built, b"eins zwei\n\ndrei\n", options)
        rows = [json.loads(line) for line in lines]
        assert rows == json.loads(figures.read_text())["translations"] and "candidates" not in rows[1]
        for row in (rows[0], rows[2]):
            best = row["candidates"][0]
            assert row["hypotheses"] == 4 and len(row["candidates"]) == 3
            assert best == {"text": row["text"], "score": row["score"], "length": row["length"]}

    def test_lines_are_split_into_sentences_and_joined(self, long, translate):
        content = b"Eins zwei.  Dr. Acht drei? Vier\n \nvier \n"
        status, lines, errors = translate(long, content, "--split --trace")
        assert status == 0 and len(lines) == 3 and lines[1] == ""
        assert errors.count("Dr. Acht drei?") == 1
        rows = [json.loads(row) for row in translate(long, content, "--split --jsonl --n_best 1")[1]]
        assert rows[2]["candidates"][0]["text"] == rows[2]["text"] == lines[2]
        parts = rows[0]["sentences"]
        assert [part["source"] for part in parts] == ["Eins zwei.", "Dr. Acht drei?", "Vier"]
        texts = [part["text"] for part in parts]
        assert rows[0]["text"] == f"{texts[0]}  {texts[1]} {texts[2]}" and "sentences" not in rows[2]
        assert rows[0]["passes"] == sum(part["passes"] for part in parts) and rows[1]["length"] == 1
        mean = sum(part["score"] * part["length"] for part in parts) / rows[0]["length"]
        assert rows[0]["score"] == pytest.approx(mean)

    @pytest.mark.parametrize(
        ("text", "warned"), [(b"eins\nzwei\ndrei\n", True), (b"Eins. Zwei. Drei.\n", True), (b"eins\n\nzwei\n", False)]
    )
    def test_the_page_shows_the_first_translations(self, built, tmp_path, monkeypatch, translate, text, warned):
        monkeypatch.setattr("padir.cli.translating._SHOWN", 2)
        _, lines, errors = translate(built, text, f"--split --trace --html {tmp_path}/page.html")
        assert len(lines) == text.count(b"\n")
        assert ("page.html shows the first 2 translations" in errors) == warned
        assert (tmp_path / "page.html").read_text().count("<article") == 2

    def test_gin_of_one_call_does_not_reach_the_next(self, built, capsys, translate):
        translate(built, b"eins\n", "--gin.Decoding.batch_size=7")
        refused(capsys, f"translate --model {built}/model --gin.Decoding.num_steps=0")
        assert translate(built, b"eins\n")[0] == 0

    def test_trace_and_html(self, long, tmp_path, translate):
        page, figures = tmp_path / "page.html", tmp_path / "figures.json"
        options = f"--trace --html {page} --json {figures}"
        status, lines, errors = translate(long, b"eins <b> zwei\n\nvier\n", options)
        assert status == 0 and len(lines) == 3
        assert "eins <b> zwei" in errors and "vier" in errors
        html = page.read_text()
        assert html.lower().startswith("<!doctype html>") and "eins &lt;b&gt; zwei" in html and "<b> zwei" not in html
        assert json.loads(figures.read_text())["lines"] == 3


class TestAutoregressive:
    def test_translate(self, causal, tmp_path, capsys):
        (tmp_path / "in.txt").write_text("eins zwei\n\ndrei\n")
        command = f"translate --model {causal} --input {tmp_path}/in.txt --output {tmp_path}/out.txt"
        assert run(capsys, f"{command} --beam 2")[0] == 0
        lines = (tmp_path / "out.txt").read_text().split("\n")
        assert len(lines) == 4 and lines[1] == lines[3] == "" and lines[0] and lines[2]
        assert "have steps to show" in refused(capsys, f"{command} --trace")

    @pytest.mark.parametrize(
        "option", ["--num_steps 4", "--strategy padir", "--num_lengths 1", "--length_normalization 1.0"]
    )
    @pytest.mark.parametrize("command", ["translate", "evaluate --data {built}/data --split validation"])
    def test_options_of_drafts_are_refused_even_at_their_defaults(self, built, causal, capsys, command, option):
        errors = refused(capsys, f"{command.format(built=built)} --model {causal} {option}")
        assert f"{option.split()[0]} applies only to the mode refine" in errors


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ("--strategy guess", "no strategy is called 'guess': known are padir"),
            ("--gin_file no_such.gin", "a gin file is missing"),
            ("--gin_file configs", "there is no configuration 'configs'"),
            ("--gin_file README.md", "the gin file README.md cannot be read as gin configuration, line 3"),
            ("--input no_such.txt", "cannot read --input no_such.txt (No such file or directory)"),
            ("--input .", "cannot read --input . (Is a directory)"),
            ("--length_normalization nan", "length_normalization must be in [0, 10], got nan"),
            ("--rerank mbr", "--rerank needs several hypotheses of a sentence, got 1"),
            ("--n_best 5 --jsonl --num_lengths 2 --num_drafts 2", "n_best must be at most 4, the number of hypo"),
            ("eins", "give TEXT or --input, not both"),
        ],
    )
    def test_options_of_translate(self, built, tmp_path, capsys, options, words):
        (tmp_path / "in.txt").write_text("eins\n")
        source = "" if "--input" in options else f"--input {tmp_path}/in.txt"
        places = f"--output {tmp_path}/out/out.txt --json {tmp_path}/figures.json"
        assert words in refused(capsys, f"translate {options} --model {built}/model {source} {places}")
        assert [path.name for path in tmp_path.rglob("*")] == ["in.txt"]

    def test_a_rule_needs_hypotheses_of_its_mode_or_of_gaps(self, built, causal, capsys):
        for model, options, remedy in (
            (causal, "--beam 1", "raise beam"),
            (causal, "--temperature 1", "raise num_drafts"),
            (built / "model", "--num_lengths 1", "raise num_lengths or num_drafts"),
        ):
            words = "--rerank needs several hypotheses of a sentence, got 1: " + remedy
            assert words in refused(capsys, f"translate --model {model} {options} --rerank mbr eins")
        command = f"translate --model {built}/model --num_lengths 1 --num_steps 1 --rerank mbr --n_best 2 --jsonl"
        status, out, errors = run(capsys, command, "--template", "a ___ b ___", "eins")
        assert status == 0 and json.loads(out)["candidates"], errors

    def test_a_missing_gin_file_is_told_of_once(self, tmp_path, capsys, caplog):
        (tmp_path / "mine.gin").write_text("include 'nowhere.gin'\n")
        for name in ("nowhere.gin", tmp_path / "mine.gin"):
            errors = refused(capsys, f"translate --gin_file {name}")
            assert "nowhere.gin" in errors and errors.count("\n") == 1
        assert not caplog.records  # gin would log every folder where the file is not

    def test_a_model_directory_that_is_not_whole(self, built, tmp_path, capsys):
        model = shutil.copytree(built / "model", tmp_path / "model")
        (model / "manifest.json").unlink()
        (tmp_path / "w").write_text("weights?")
        for name, words in (
            ("model", "manifest.json: it is incomplete, or no model directory: give"),
            ("w", "there is no model directory"),
        ):
            assert words in refused(capsys, f"translate --model {tmp_path}/{name}")
        assert f"no model directory {tmp_path}/nowhere" in refused(capsys, f"translate --model {tmp_path}/nowhere")


def test_a_writer_of_ones_own(built, short, tmp_path, capsys, monkeypatch):
    (tmp_path / "engines.py").write_text(
        "from padir.decoding import Hypothesis, Written\n\n\n"
        "class Counts:\n"
        "    most_hypotheses = 2\n\n"
        "    def write(self, sources):\n"
        "        return Written([[Hypothesis([100] * n, -float(n), 1) for n in (1, 2)] for _ in sources])\n\n\n"
        "def make(loaded, decoding, *, trace, shapes):\n"
        "    return Counts()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    tokenizer = Translator.load(short).tokenizer
    written = [tokenizer.decode([100] * n) for n in (1, 2)]
    command = f"translate --model {short} --writer engines:make --n_best 2 --jsonl"
    status, out, errors = run(capsys, command, "eins zwei drei")
    assert status == 0, errors
    assert [each["text"] for each in json.loads(out)["candidates"]] == written
    data = f"--data {built}/data --split validation"
    rows, _ = results(capsys, tmp_path / "x.json", f"evaluate --model a={short} {data} --writer engines:make")
    assert [row["model"] for row in rows] == ["a, engines:make"] and rows[0]["scores"]["bleu"]["value"] == 0
    assert rows[0]["num_lengths"] is rows[0]["strategy"] is None and hypotheses(rows[0]) == "-"
    command = f"evaluate --model a={short} {data} --writer engines:make --num_lengths 1 5 --num_drafts 2"
    rows, _ = results(capsys, tmp_path / "y.json", command)
    assert [(row["num_lengths"], row["num_drafts"]) for row in rows] == [(None, 2), (5, 2)]
    assert [hypotheses(row) for row in rows] == ["2", "10"] and label(rows[0], rows) != label(rows[1], rows)
    _, _, errors = run(capsys, f"translate --model {short} --writer engines:make --trace eins")
    assert "no translation has steps" in errors
