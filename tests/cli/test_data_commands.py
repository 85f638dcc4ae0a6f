"""`padir vocab` and `padir prepare`: what they write, and which corpora they refuse."""

import argparse
import json

import pytest
from support.commands import corpus, refused, results

from padir import config
from padir.cli.console import _dropped
from padir.cli.corpora import folders_of
from padir.pretrained import model_folder


def test_vocab_writes_a_vocabulary_of_both_sides(built, tmp_path, capsys):
    command = f"vocab {corpus(built, 'train')} --size 301 --output {tmp_path}/v.model"
    found, _ = results(capsys, tmp_path / "results.json", command)
    assert found["pieces"] == 301 and (tmp_path / "v.model").is_file()


def test_prepare_writes_records_of_all_pairs(built, tmp_path, capsys):
    command = f"prepare {corpus(built, 'train', 'validation')} --vocab {built}/vocab.model --output {tmp_path}/data"
    found, out = results(capsys, tmp_path / "results.json", command)
    assert "train" in out and "300" in out
    assert found["splits"]["train"]["written"] == 300
    limits = {"train": {"source too long": 2}, "test": {"source too long": 3, "empty": 0}, "validation": {}}
    shown = [_dropped(split, dropped) for split, dropped in limits.items()]
    assert shown == ["2 source too long", "none (kept in the text but not in the records: 3 source too long)", "none"]
    assert json.loads((tmp_path / "data" / "manifest.json").read_text())["splits"].keys() == {"train", "validation"}


@pytest.mark.parametrize(
    ("given", "codes"), [("zh-CN-en", ("zh-CN", "en")), ("eng_Latn-zho_Hans", ("eng_Latn", "zho_Hans"))]
)
def test_two_tables_are_two_corpora_of_any_codes(built, tmp_path, capsys, given, codes):
    for name in "ab":
        (tmp_path / f"{name}.tsv").write_text("eins\tone\nzwei\ttwo\n")
    command = f"prepare --vocab {built}/vocab.model --languages {given} --dedupe --output {tmp_path}/data"
    found, out = results(capsys, tmp_path / "r.json", f"{command} --train {tmp_path}/a.tsv {tmp_path}/b.tsv")
    assert found["splits"]["train"]["corpora"] == {"a": {"read": 2, "written": 2}, "b": {"read": 2, "written": 0}}
    assert (found["source"]["source_language"], found["source"]["target_language"]) == codes
    assert found["splits"]["train"]["dropped"] == {"duplicate": 2} and "  b" in out


def test_the_vocabulary_of_a_model_is_a_vocabulary(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("Hallo\tHello\n")
    command = f"prepare --languages de-en --validation {tmp_path}/a.tsv"
    path = model_folder("de_en") / "vocab.model"
    written = []
    for name, vocab in (("name", "de_en"), ("folder", model_folder("de_en")), ("file", path)):
        output = tmp_path / name
        results(capsys, tmp_path / "r.json", f"{command} --vocab {vocab} --output {output}")
        written.append({file.name: file.read_bytes() for file in output.iterdir()})
    assert written[0]["vocab.model"] == path.read_bytes()
    assert written[0] == written[1] == written[2]


def test_folders_come_from_the_option_or_from_gin():
    config.clear()
    config.parse([], ["DATASET=('a', 'b')"])
    assert folders_of(argparse.Namespace(data=None)) == ("a", "b")
    assert folders_of(argparse.Namespace(data=["c"])) == ("c",)
    config.clear()


def test_files_of_unequal_length_are_refused(built, tmp_path, capsys):
    (tmp_path / "short.en").write_text("one\n")
    files = f"--languages de-en --train {built}/train.de {tmp_path}/short.en"
    errors = refused(capsys, f"vocab {files} --size 300 --output {tmp_path}/v.model")
    assert "300 lines" in errors and "INTERNAL" not in errors  # SentencePiece's word for errors of its reader
    assert [path.name for path in tmp_path.iterdir()] == ["short.en"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--task wmt99_de_en", "unknown source 'wmt99_de_en': known are toy_de_en"),
        ("--task multi30k_de_en --data_dir nowhere", "neither nowhere"),
        ("", "no corpus: give --task NAME"),
        ("--gin.ModelConfig.width=8", "no corpus: give --task NAME"),
        ("--train a.tsv", "files need --languages SRC-TGT"),
        *((f"--train a.tsv --languages {x}", "must be SRC-TGT") for x in ("de", "de-de", "de-deu_Latn", "en-pt-pt")),
        ("--train a.tsv --languages klingon-en", "languages 'klingon-en': 'klingon' is no code of a lang"),
        ("--train a.tsv --languages de-../x", "languages 'de-../x': '../x' is no code of a language"),
        ("--task toy_de_en --languages fr-en", "--languages applies only to files"),
        ("--data_dir x --train x.tsv --languages de-en", "--data_dir applies only to a task"),
        ("--train no_such.tsv --languages de-en", "no file no_such.tsv"),
        ("--train x.tsv --task toy_de_en", "either --task or files"),
    ],
)
def test_wrong_corpora_are_refused(tmp_path, capsys, options, words):
    assert words in refused(capsys, f"vocab {options} --output {tmp_path}/v.model")
    assert not list(tmp_path.iterdir())
