"""Files that somebody made to take much time or memory: work grows no faster than their size, memory has a bound."""

import functools
import gzip
import io
import sys
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
from support.refusals import refuses

from padir.data.archives import members
from padir.data.sources import ParallelText
from padir.errors import PadirError

SGM = '<srcset srclang="any"><doc docid="a">'
TMX = '<tmx version="1.4"><body>'
UNIT = '<tu><tuv xml:lang="de"><seg>{0}</seg></tuv><tuv xml:lang="en"><seg>{0}</seg></tuv></tu>'
OUTER = '<!DOCTYPE tmx SYSTEM "x.dtd" [{}]>' + TMX
# The name of a file and its text of a size; work that grew with its square would take hours.
TEXTS = {
    "an attribute without a value": ("a.sgm", lambda n: f"{SGM}<seg {'a' * n}>x</seg>"),
    "an attribute without its quote": ("a.sgm", lambda n: f"{SGM}<seg {'a=' * n}>x</seg><seg b={'a=' * n}"),
    "tags without an end": ("a.sgm", lambda n: SGM + "<seg " * n),
    "segments without an end": ("a.sgm", lambda n: SGM + '<seg id="1">' * n),
    "spaces in a tag": ("a.sgm", lambda n: f"{SGM}<seg a{' ' * n}b>x</seg>"),
    "entities without an end": ("a.sgm", lambda n: f"{SGM}<seg>{'&#' + '1' * n}{'&a' * n}</seg>"),
    "newlines in SGM": ("a.sgm", lambda n: SGM + "\n" * n),
    "elements outside units": ("a.tmx", lambda n: f"{TMX}{'<note/>' * (n // 20)}{UNIT.format('x')}"),
    "many units": ("a.tmx", lambda n: TMX + UNIT.format("x") * (n // 100)),
    "a unit of many variants": ("a.tmx", lambda n: f"{TMX}<tu>{'<tuv/>' * (n // 20)}</tu>"),
    "many entities": ("a.tmx", lambda n: OUTER.format("") + UNIT.format("&eacute;" * (n // 20))),
    "many declarations": (
        "a.tmx",
        lambda n: (
            OUTER.format("".join(f'<!ENTITY e{i} "x">' for i in range(n // 100)))
            + UNIT.format("".join(f"&e{i};" for i in range(n // 100)))
        ),
    ),
    "nested elements": ("a.xml", lambda n: "<dataset>" + "<doc>" * n),
    "elements inside a segment": ("a.xml", lambda n: f"<dataset><doc><src><seg>{'<b/>' * (n // 20)}</seg></src></doc>"),
    "brackets": ("a.jsonl", lambda n: '{"de": ' + "[" * n),
    "equal keys": ("a.jsonl", lambda n: f'{{"de": "a", "en": "b"{", {}: 1".format(chr(34) + "k" + chr(34)) * n}}}'),
    "other keys": ("a.jsonl", lambda n: "{" + ", ".join(f'"{i}": 1' for i in range(n)) + "}"),
    "digits": ("a.jsonl", lambda n: f'{{"de": {"1" * n}, "en": "b"}}'),
    "newlines in JSON": ("a.jsonl", lambda n: "\n" * n),
    "spaces before a line break": ("a.jsonl", lambda n: f'{{"de": "a{" " * n}b\\nc", "en": "b"}}'),
    "a header of many names": ("a.tsv", lambda n: "\t".join(map(str, range(n))) + "\n"),
    "a field of many lines": ("a.csv", lambda n: "a,b\n" + '"' + "\n" * (n // 20)),
    "a row of many fields": ("a.csv", lambda n: "a,b\n" + '"\n",' * (n // 20)),
    "quotes": ("a.tsv", lambda n: '"' * n + "\t" + '"' * n),
    "newlines": ("a.tsv", lambda n: "\n" * n),
}


def outcome(pairs):
    """The number of pairs and the length of the message; reads all pairs."""
    try:
        return sum(1 for _ in pairs()), 0
    except PadirError as error:
        return 0, len(str(error))


def calls(work):
    """The number of calls of Python and C functions."""
    count = 0

    def tell(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(tell)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def peak(work):
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def text(path, content):
    path.write_bytes(gzip.compress(content.encode(), 1))
    other = path.with_name("b.sgm.gz")
    other.write_bytes(gzip.compress(SGM.encode()))
    paths = (path, other) if ".sgm" in path.name else path
    return functools.partial(ParallelText("mine", "de", "en", train=paths).pairs, "train")


@pytest.mark.parametrize("kind", TEXTS)
def test_work_grows_no_faster_than_text(tmp_path, kind):
    name, make = TEXTS[kind]
    outcome(text(tmp_path / f"{name}.gz", make(100)))  # imports
    work = []
    for n in (50_000, 100_000):
        pairs = text(tmp_path / f"{name}.gz", make(n))
        messages = []
        work.append(calls(lambda pairs=pairs, messages=messages: messages.append(outcome(pairs)[1])))
        assert messages[0] < 5_000
    assert work[1] <= 2.6 * work[0]


@pytest.mark.parametrize(
    ("name", "begin", "part"),
    [
        ("a.csv", "a,b\n", f'"{"x" * 99}\n",'),
        ("a.csv", 'a,b\n"', "x" * 99 + "\n"),
        ("a.tsv", "", "x"),
        ("a.jsonl", '{"de": "a", "en": "b"}\n{"de": "', "x"),
        ("a.tmx", TMX, "<note>x</note>"),
        ("a.tmx", TMX, " "),
        ("a.tmx", f"{TMX}<tu>", "<tuv/>"),
        ("a.xml", "<dataset><doc>", "<seg>x</seg>"),
    ],
)
def test_one_limit_holds_for_every_format(tmp_path, monkeypatch, name, begin, part):
    limit = 1 << 18
    monkeypatch.setattr("padir.text.lines.LONGEST_LINE", limit)
    pairs = text(tmp_path / f"{name}.gz", begin + part * (10 * limit // len(part)))
    refuses(lambda: list(pairs()), f"{name}.gz, ... : more than 262,144 bytes are too long")
    assert peak(functools.partial(outcome, pairs)) < 24 * limit


def test_text_of_sgm_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("padir.data.markup._LARGEST_SGM", 1_000)
    pairs = text(tmp_path / "a.sgm.gz", SGM + "\n" * 100_000)
    refuses(lambda: list(pairs()), "a.sgm.gz: more than 1,000 bytes")


def test_equal_texts_of_parquet_stand_once(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    long = pyarrow.array(["x" * (1 << 20)])

    def pairs(rows):
        texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * rows, pyarrow.int32()), long)
        table = pyarrow.table({"de": texts, "en": texts})
        parquet.write_table(table, tmp_path / "a.parquet", compression="zstd", store_schema=False)
        return functools.partial(ParallelText("mine", "de", "en", train=tmp_path / "a.parquet").pairs, "train")

    assert outcome(pairs(40)) == (40, 0) and (tmp_path / "a.parquet").stat().st_size < 10_000
    work = [calls(functools.partial(outcome, pairs(rows))) for rows in (20, 40)]
    assert work[1] <= 2.6 * work[0]
    assert peak(functools.partial(outcome, pairs(40))) < 16 << 20


def test_rows_of_parquet_are_read_in_batches(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    texts = pyarrow.DictionaryArray.from_arrays(np.zeros(5_000_000, np.int32), pyarrow.array(["x"]))
    parquet.write_table(pyarrow.table({"de": texts, "en": texts}), tmp_path / "a.parquet", row_group_size=5_000_000)
    del texts
    before = pyarrow.total_allocated_bytes()
    pairs = ParallelText("mine", "de", "en", train=tmp_path / "a.parquet").pairs("train")
    assert next(pairs) == ("x", "x") and pyarrow.total_allocated_bytes() - before < 4 << 20


def of_tar(path, count):
    with tarfile.open(path, "w:gz") as archive:
        for i in range(count):
            member = tarfile.TarInfo(f"{i}/a.de" if i % 2 else "b" * 200)
            member.size = 5
            archive.addfile(member, io.BytesIO(b"eins\n"))


def of_zip(path, count):
    with zipfile.ZipFile(path, "w") as archive:
        for i in range(count):
            archive.writestr(f"{i}/a.de", "eins\n")


@pytest.mark.parametrize(("name", "write"), [("a.tgz", of_tar), ("a.zip", of_zip)])
def test_work_grows_no_faster_than_archives(tmp_path, name, write):
    work = []
    for count in (300, 600):
        write(tmp_path / name, count)
        work.append(calls(lambda: [content.read() for _, content in members(tmp_path / name, "*.de", "")]))
    assert work[1] <= 2.6 * work[0]
