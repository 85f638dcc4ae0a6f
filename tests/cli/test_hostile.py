"""Hostile input: any bytes through the commands, and memory that stays bounded."""

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from support.commands import refused, run
from support.small_corpus import number_lines, small_tokenizer
from support.tiny_model import random_model_dir

from padir.data.prepared import load_manifest, read_text
from padir.errors import PadirError
from padir.metrics.scores import score_all
from padir.text.tokenizer import train

ROOT = Path(__file__).parents[2]
FUZZ = ROOT / "scripts" / "fuzz.py"

SIGNS = st.sampled_from(
    ["eins", "zwei ", " ", "", "\t", "\0", "\r", "\x1b[2J", "\x85", "\u2028", "\u202e", "\ufeff", "\u0301" * 40]
    + ["👩‍👩‍👧‍👦", "<extra_id_0>", "</s>", "<pad>", "▁", "⁇", "\uffff", "\U0010ffff", "漢字", "7" * 50, "x" * 3_000]
)
LINE = st.lists(SIGNS, max_size=8).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=30
)
few = settings(deadline=None, max_examples=6, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def tokenizer(folder):
    return small_tokenizer(folder / "vocab.model")


@pytest.fixture(scope="module")
def model(folder):
    return random_model_dir(folder / "refining", max_length=8)


def process(*arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.run([sys.executable, *map(str, arguments)], env=environment, capture_output=True)


def test_made_up_model_directories_are_loaded_or_refused(model):
    fuzz = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("fuzz", FUZZ))
    spec.loader.exec_module(fuzz)
    assert 15 <= fuzz.fuzz_folders(str(model), 30, seed=0)["refused"] <= 30


@pytest.mark.slow
def test_as_many_of_ten_thousand_lines_come_out_in_order(model):
    done = process(FUZZ, "--lines", 10_000, "--model", model, "--sample", 20)
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["lines"] == 10_000


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(-5, 500) | st.integers(3, 258) | st.just(3 + 0xED), max_size=20))
@example([3 + 0xED, 3 + 0xA0, 3 + 0x80])  # a surrogate in bytes
@example([3 + 0xF4, 3 + 0x90, 3 + 0x80, 3 + 0x80])  # above U+10FFFF
@example([3 + 0x0A, 3 + 0x0D, 2, 10**12, -(10**12)])
def test_whatever_a_model_writes_is_one_line_of_text(tokenizer, ids):
    text = tokenizer.decode(ids)
    text.encode("utf-8")
    assert "\n" not in text


class TestFiles:
    """What the commands make of files: exit status 0 and everything accounted for, or 2 and a message."""

    def files(self, folder, sources, targets, end, mark):
        paths = folder / "x.de", folder / "x.en"
        for path, side in zip(paths, (sources, targets), strict=True):
            path.write_bytes(mark + b"".join(line.encode() + end for line in side))
        return f"--languages de-en --validation {paths[0]} {paths[1]}"

    @settings(few, max_examples=40)
    @given(st.lists(st.tuples(LINE, LINE), min_size=1, max_size=9), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
    def test_prepare_keeps_the_text_of_every_pair(self, tokenizer, folder, capsys, pairs, end, mark):
        if mark:
            pairs = [(source.removeprefix("\ufeff"), target.removeprefix("\ufeff")) for source, target in pairs]
        pairs = [(source.rstrip("\r"), target.rstrip("\r")) for source, target in pairs]  # would be a part of the end
        if not mark and any(side.startswith("\ufeff") for side in pairs[0]):
            return
        pairs += [("eins zwei drei vier fünf", "one two three four five")] * 12  # else tabs might be columns
        if any(text.count("\0") > len(text) / 12 for text in map("".join, zip(*pairs, strict=True))):
            return  # so much of it is no text
        options = self.files(folder, *zip(*pairs, strict=True), end=end, mark=b"\xef\xbb\xbf" * mark)
        shutil.rmtree(folder / "data", ignore_errors=True)
        status, _, errors = run(capsys, f"prepare {options} --vocab {folder}/vocab.model --output {folder}/data")
        assert status == 0, errors
        assert read_text(folder / "data", "validation") == tuple(map(list, zip(*pairs, strict=True)))
        info = load_manifest(folder / "data", verify=True).splits["validation"]
        assert info.read == len(pairs) == info.written + sum(info.dropped.values())

    @settings(few, max_examples=8)
    @given(st.lists(LINE, max_size=30))
    def test_a_vocabulary_is_learned_beside_any_lines_or_does_not_fit(self, folder, lines):
        try:
            learned = train([*number_lines()[:300], *lines], folder / "any.model", size=301)
        except PadirError as error:
            assert lines and "pieces" in str(error)
            return
        for line in (line.replace("▁", " ") for line in lines):
            assert learned.decode(learned.encode(line)) == line

    @settings(few)
    @given(st.lists(st.tuples(LINE, LINE, LINE), min_size=1, max_size=6))
    @example([("\0", " ", ""), ("", "one", "\0"), ("eins", "", "one")])
    def test_any_translations_can_be_scored(self, triples):
        triples = [*triples, ("zwei", "two", "three")]  # a test set of empty references is refused
        sources, references, hypotheses = map(list, zip(*triples, strict=True))
        scores = score_all(sources, hypotheses, references, "de", "en", "x")
        assert all(score.value == score.value for score in scores.values())  # no nan

    TRANSLATE = "translate --model {model} --input {name}"

    @pytest.mark.parametrize(
        ("command", "name", "text", "title"),
        [
            (TRANSLATE, "a.sgm", '<srcset><doc docid="a"><seg id="1">eins</seg></doc></srcset>', "SGM"),
            (TRANSLATE, "a.txt", '<?xml version="1.0"?><tmx><body/></tmx>', "TMX"),
            (TRANSLATE, "a.txt", '{"de": "eins", "en": "one"}', "JSON"),
            (TRANSLATE, "a.txt", "eins\tone\nzwei\ttwo", "text in columns"),
            (TRANSLATE, "a.csv", "eins,one", "CSV"),
            ("score --model {model} --input {name} --target {name}", "a.csv", "eins,one", "CSV"),
            ("compare --languages de-en --target {name} a {name}", "a.csv", "eins,one", "CSV"),
        ],
    )
    def test_other_formats_are_no_sentences(self, model, tmp_path, monkeypatch, capsys, command, name, text, title):
        monkeypatch.chdir(tmp_path)
        Path(name).write_text(text + "\n")
        Path("a").write_text("one\n")
        message = refused(capsys, command.format(model=model, name=name))
        assert f"{name} is {title}, and not one sentence a line" in message


def peak_mb(model, count, folder):
    """The peak memory in MB of translating so many lines."""
    source = folder / f"{count}.txt"
    with source.open("w") as file:
        rng = random.Random(0)
        words = "eins zwei drei vier fünf sechs sieben acht neun null".split()
        for _ in range(count):
            file.write(" ".join(rng.choices(words, k=rng.randint(0, 5))) + "\n")
    code = (
        "import resource, sys; from padir.cli import main; status = main(sys.argv[1:]);"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, file=sys.stderr); sys.exit(status)"
    )
    command = f"translate --model {model} --input {source} --num_steps 1 --batch_size 512 --json {os.devnull}"
    done = process("-c", code, *command.split(), "--output", folder / "out.txt")
    assert done.returncode == 0, done.stderr.decode()
    with (folder / "out.txt").open() as file:
        assert sum(1 for _ in file) == count
    return int(done.stderr.split()[-1])


@pytest.mark.slow
def test_memory_of_a_million_lines_is_that_of_ten_thousand(model, tmp_path):
    few, many = (peak_mb(model, count, tmp_path) for count in (10_000, 1_000_000))
    print(f"{few} MB for 10,000 lines, {many} MB for 1,000,000")
    assert many < 1.2 * few


@pytest.mark.parametrize(
    "command",
    [
        "vocab --languages de-en --train a.tsv --size 290 --output a.tsv",
        "translate --input in.txt --json in.txt",
        "translate --input in.txt --output ./in.txt",
        "translate --mode refine --input in.txt --html link.txt",
        "translate --terms a.tsv --output a.tsv Haus",
        "translate --gin_file g.gin --output g.gin Haus",
        "score --model de_en_ar --input in.txt --target ref.txt --output ref.txt",
        "compare --languages de-en --target ref.txt in.txt a.tsv --json in.txt",
        "translate --output new.txt --json new.txt Haus",
        "translate --mode refine --output new.txt --html ./new.txt Haus",
        "evaluate --model de_en --data data --metric known_words=in.txt --gin_file g.gin --json new.md --output new",
        "evaluate --model de_en --data data --metric known_words=new.md --output new",
    ],
)
def test_no_file_of_results_replaces_another_one(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    files = {
        "a.tsv": "Haus\thouse\n",
        "in.txt": "Haus\n",
        "ref.txt": "house\n",
        "new.md": "house\n",
        "g.gin": "Decoding.seed = 1\n",
    }
    for name, text in files.items():
        Path(name).write_text(text)
    Path("link.txt").hardlink_to("in.txt")
    assert "would replace the file of --" in refused(capsys, command)
    assert {name: Path(name).read_text() for name in files} == files
    assert not Path("new.txt").exists()


def test_words_that_name_no_file_are_no_paths(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("translating", "test"):  # names of a module and of a split
        Path(name).write_text("")
    command = f"translate --model {model} --num_steps 1 --output translating"
    status, _, errors = run(capsys, command, "--placeholders", "https://[^ ]+", "Siehe https://a.b.")
    assert status == 0 and "https://a.b." in Path("translating").read_text(), errors
    status, _, errors = run(capsys, f"translate --model {model} --num_steps 1", "--template", "gs:/ ___", "Haus")
    assert status == 0, errors
    assert "nowhere" in refused(capsys, "evaluate --model de_en --data nowhere --split test --output test")
