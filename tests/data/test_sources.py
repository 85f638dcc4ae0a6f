import gzip
import os
import threading
from pathlib import Path

import pytest
from support.refusals import refuses

from padir.data.sources import SOURCES, ParallelText, get_source, multi30k, sacrebleu_set

MULTI30K = Path(__file__).parents[3] / "shared/data/multi30k"


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def text(tmp_path, source: bytes, target: bytes) -> ParallelText:
    files = write(tmp_path / "a.de", source), write(tmp_path / "a.en", target)
    return ParallelText("mine", "de", "en", train=files)


def test_lines_end_at_newlines_only(tmp_path):
    source = "eins\u2028noch eins\x0b\x0c\x85\x1c\n zwei \r\n\n".encode()
    pairs = list(text(tmp_path, source, b"one\ntwo\n\n").pairs("train"))
    assert pairs == [("eins\u2028noch eins\x0b\x0c\x85\x1c", "one"), (" zwei ", "two"), ("", "")]


def test_byte_order_mark_and_missing_last_newline(tmp_path):
    pairs = list(text(tmp_path, b"\xef\xbb\xbfeins\nzwei", b"one\ntwo\n").pairs("train"))
    assert pairs == [("eins", "one"), ("zwei", "two")]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (b"1\n2\n3\n4\n", b"1\n2\n", "a.de has 4 lines but ... a.en has 2"),
        (b"1\n", b"1\n2\n3\n", "a.de has 1 lines but ... a.en has 3"),
        (b"", b"1\n", "a.de has 0 lines but ... a.en has 1"),
        (b"", b"", "a.de is empty"),
        (b"1\nna\xefve\n", b"1\n2\n", "a.de, line 2: not UTF-8 (byte 3, ... iconv"),
    ],
)
def test_files_that_do_not_fit(tmp_path, source, target, message):
    refuses(lambda: list(text(tmp_path, source, target).pairs("train")), message)


def test_a_pipe_is_read_like_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "t.en").write_text("one\ntwo\n")
    source = ParallelText("mine", "de", "en", train=(tmp_path / "pipe", tmp_path / "t.en"))
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("eins\nzwei\n",))
    writer.start()
    assert list(source.pairs("train")) == [("eins", "one"), ("zwei", "two")]
    writer.join()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda folder: ParallelText("mine", "de", "en", train=(folder / "no.de", folder)),
            "mine train: no file ... no.de",
        ),
        (lambda _: ParallelText("mine", "de", "en"), "mine has no files"),
        (lambda folder: text(folder, b"1\n", b"1\n").pairs("dev"), "mine has no split 'dev': use one of train"),
        (lambda folder: sacrebleu_set("wmt14", "de", "fr", folder), "SacreBLEU's wmt14 must be ... , got 'de-fr'"),
        (lambda folder: sacrebleu_set("wmt99", "de", "en", folder), "SacreBLEU has no set 'wmt99'"),
        (
            lambda folder: sacrebleu_set("wmt14/full", "de", "en", folder),
            "SacreBLEU's wmt14/full is not in ... : run `sacrebleu -t wmt14/full -l de-en",
        ),
        (
            lambda folder: get_source("multi30k_de_en", folder),
            "neither ... train.de.gz nor ... train.de exists ... github.com/multi30k/dataset",
        ),
        (lambda _: get_source("multi30k"), "unknown source 'multi30k': known are toy_de_en, multi30k_de_en"),
    ],
)
def test_what_is_not_there_is_told(tmp_path, call, words):
    refuses(call, words, tmp_path)


def test_sets_of_sacrebleu_are_read_where_they_are(tmp_path):
    (tmp_path / "wmt14/full").mkdir(parents=True)
    for side, content in {"src": b"eins\n", "ref": b"one\n", "docid": b"a\n"}.items():
        write(tmp_path / "wmt14/full" / f"wmt14_full.de-en.{side}", content)
    assert list(sacrebleu_set("wmt14/full", "de", "en", tmp_path).pairs("test")) == [("eins", "one")]


def test_multi30k_takes_plain_and_zipped_files(tmp_path):
    for stem in ("train", "valid", "test"):
        write(tmp_path / f"{stem}.de.gz", f"{stem} de\n".encode())
        write(tmp_path / f"{stem}.en", f"{stem} en\n".encode())
    source = get_source("multi30k_en_de", tmp_path)
    assert (source.name, source.source_language, source.target_language) == ("multi30k_en_de", "en", "de")
    assert source.splits == ("train", "validation", "test")
    assert list(source.pairs("validation")) == [("valid en", "valid de")]
    assert list(multi30k(tmp_path).pairs("test")) == [("test de", "test en")]


@pytest.mark.skipif(not MULTI30K.is_dir(), reason="the Multi30k files are not beside the checkout")
@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("multi30k")])
def test_multi30k_has_its_published_size(name):
    source = get_source(name, MULTI30K)
    assert [sum(1 for _ in source.pairs(split)) for split in source.splits] == [29_000, 1_014, 1_000]
