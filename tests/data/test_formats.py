"""Formats of parallel text: each gives the pairs that it holds, or is refused by its name."""

import bz2
import csv
import gzip
import io
import itertools
import json
import lzma
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.refusals import refuses

from padir.data.sources import ParallelText, Source
from padir.errors import PadirError

PAIRS = [("Der rote Zug", "The red train"), ('Er sagt "ja", gern', 'He says "yes", gladly'), ("R&D < 3", "R&D < 3 too")]
PLAIN = ["".join(side[i] + "\n" for side in PAIRS) for i in (0, 1)]
TSV = "".join(f"{source}\t{target}\n" for source, target in PAIRS)


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def sgm(side, kind="srcset", language="any"):
    segments = "".join(f'<seg id="{i}"> {escaped(pair[side])} </seg>\n' for i, pair in enumerate(PAIRS, 1))
    name = "trglang" if kind == "refset" else "srclang"
    return f'<{kind} setid="t" {name}="{language}">\n<DOC docid="a">\n<p>{segments}</p></DOC>\n</{kind}>\n'


def as_csv(rows, delimiter=",", quoting=csv.QUOTE_MINIMAL):
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, lineterminator="\n", quoting=quoting).writerows(rows)
    return out.getvalue()


def tmx(units):
    body = "".join(
        "<tu>" + "".join(f'<tuv xml:lang="{code}"><seg>{text}</seg></tuv>' for code, text in unit) + "</tu>"
        for unit in units
    )
    return f'<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx version="1.4"><body>{body}</body></tmx>'


def wmt(ref="en"):
    sides = (
        f'<{tag} lang="{code}"><p>'
        + "".join(f'<seg id="{i}">{escaped(pair[side])}</seg>' for i, pair in enumerate(PAIRS, 1))
        + f"</p></{tag}>"
        for side, (tag, code) in enumerate((("src", "de"), ("ref", ref)))
    )
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<dataset id="t"><doc id="a">{"".join(sides)}</doc></dataset>'


READ = {
    "two plain files": {"a.de": PLAIN[0], "a.en": PLAIN[1]},
    "two columns": {"a.tsv": TSV},
    "comments before the root": {"a.xml": wmt().replace("?>", "?>" + 60 * "<!--x-->")},
    "two columns without a telling name": {"a.txt": TSV},
    "columns in quotes": {"a.tsv": as_csv(PAIRS, "\t", csv.QUOTE_ALL)},
    "a header above columns in quotes": {"a.txt": "de\ten\n" + as_csv(PAIRS, "\t", csv.QUOTE_ALL)},
    "a header of languages": {"a.tsv": "de\ten\n" + TSV},
    "a header with more columns": {"a.tsv": "id\ttarget\tsource\n" + "".join(f"1\t{t}\t{s}\n" for s, t in PAIRS)},
    "CSV": {"a.csv": as_csv(PAIRS)},
    "CSV with names": {"a.csv": as_csv([("id", "English", "German"), *((i, t, s) for i, (s, t) in enumerate(PAIRS))])},
    "names with other words": {
        "a.tsv": "sentence_id\tEnglish sentence\ttext_de\n" + "".join(f"1\t{t}\t{s}\n" for s, t in PAIRS)
    },
    "CSV of a spreadsheet": {"a.csv": "\ufeff" + as_csv([("deu_Latn", "eng_Latn"), *PAIRS], ";")},
    "old SGM": {"src.sgm": sgm(0), "ref.sgm": sgm(1, "refset", "en")},
    "XML of WMT": {"a.xml": wmt()},
    "TMX": {"a.tmx": tmx([(("en-GB", escaped(t)), ("de", escaped(s))) for s, t in PAIRS])},
    "TMX after iconv": {
        "a.tmx": tmx([(("en-GB", escaped(t)), ("de", escaped(s))) for s, t in PAIRS]).replace(
            '"1.0"', '"1.0" encoding="UTF-16"', 1
        )
    },
    "JSON lines": {
        "a.jsonl": "".join(json.dumps({"id": 1, "translation": {"en": t, "de": s}}) + "\n" for s, t in PAIRS)
    },
    "JSON lines of two keys": {"a.json": "".join(json.dumps({"src": s, "tgt": t}) + "\n" for s, t in PAIRS)},
    "carriage returns": {"a.tsv": TSV.replace("\n", "\r")},
    "CRLF": {"a.de": PLAIN[0].replace("\n", "\r\n"), "a.en": PLAIN[1]},
}
PACKED = {"": lambda b: b, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def source_of(folder, files):
    for name, content in files.items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return ParallelText("mine", "de", "en", train=[folder / name for name in files])


def pairs_of(folder, files):
    return list(source_of(folder, files).pairs("train"))


@pytest.mark.parametrize("suffix", PACKED)
@pytest.mark.parametrize("kind", READ)
def test_every_format_gives_its_pairs(tmp_path, kind, suffix):
    files = {name + suffix: PACKED[suffix](content.encode()) for name, content in READ[kind].items()}
    source = source_of(tmp_path, files)
    assert list(source.pairs("train")) == list(source.pairs("train")) == PAIRS
    assert isinstance(source, Source)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_content_decides_and_not_the_name(tmp_path, pack):
    assert list(source_of(tmp_path, {"a.tsv": pack(TSV.encode())}).pairs("train")) == PAIRS


COMMENTS = 60 * "<!--x-->", 60 * "<?x?>"  # each of which once doubled the time


@pytest.mark.parametrize(
    ("files", "pairs"),
    [
        ({"a.de": COMMENTS[0] + "\n", "a.en": COMMENTS[1] + "\n"}, [COMMENTS]),  # text that begins like XML
        ({"a.csv": "eins, zwei;one, two\n"}, [("eins, zwei", "one, two")]),  # two columns win over commas in the text
        ({"a.tsv": '"eins"\t"one"\n"zwei"\ttwo\n'}, [('"eins"', '"one"'), ('"zwei"', "two")]),  # quotes stay
        ({"a.tsv": "eins\u2028noch\x85eins\tone\u2029\n"}, [("eins\u2028noch\x85eins", "one\u2029")]),
        ({"a.csv": '"eins\r\nzwei","one\ntwo"\n'}, [("eins zwei", "one two")]),  # line breaks inside a field
        ({"b.jsonl": '{"de": "drei\\nvier", "en": "three\\r\\nfour"}\n'}, [("drei vier", "three four")]),
        ({"b.jsonl": '{"de": "\\u00fc", "en": "\\ud83d\\ude00", "of": "\\ud83d"}\n'}, [("ü", "😀")]),  # cut elsewhere
        ({"a.csv": "sep=;\nde;en\neins;one\n"}, [("eins", "one")]),  # the first line that Excel writes
        ({"a.de": "x\ty\na\nb\nc\nd", "a.en": "l\nm\nn\no\np"}, [("x\ty", "l"), *zip("abcd", "mnop", strict=True)]),
        (
            {"a.tmx": tmx([[("de", "eins")], [("de-AT", "zwei <bpt>x</bpt><hi>drei</hi>"), ("en", "two\n three")]])},
            [("eins", ""), ("zwei drei", "two three")],  # a unit without a side is an empty one
        ),
        (
            {"a.tmx": tmx([[("de", "eins"), ("en", "one"), ("de", "ein"), ("en", "a")]])},
            [("eins", "one")],  # of several variants the first counts
        ),
    ],
)
def test_what_is_text_stays_text(tmp_path, files, pairs):
    assert pairs_of(tmp_path, files) == pairs


def test_a_first_line_that_looks_like_a_header_is_told(tmp_path, caplog):
    pairs = pairs_of(tmp_path, {"a.tsv": "Englisch\tDeutsch\n" + TSV})
    assert pairs[0] == ("Englisch", "Deutsch") and "a.tsv: the first line (Englisch, Deutsch)" in caplog.text
    caplog.clear()
    assert pairs_of(tmp_path, {"b.tsv": TSV}) == PAIRS and not caplog.text


def test_several_corpora_have_names(tmp_path):
    files = {"news.tsv": TSV, "talks.v2.tsv": TSV, "a.de": PLAIN[0], "a.en": PLAIN[1], **READ["XML of WMT"]}
    found = source_of(tmp_path, files).corpora("train")
    assert [(each.name, list(each.pairs)) for each in found][:2] == [("news", PAIRS), ("talks", PAIRS)]
    assert [each.name for each in found[2:]] == [f"{tmp_path / 'a.de'} {tmp_path / 'a.en'}", str(tmp_path / "a.xml")]


def test_entities_are_their_characters(tmp_path):
    declared = '<!DOCTYPE tmx SYSTEM "x.dtd" [<!ENTITY firm "Müller KG"><!ENTITY eacute "&#233;">]>'
    text = tmx([(("de", "Caf&eacute; <hi>f&uuml;r</hi> &amp;eacute; &#8364;"), ("en", "&firm;&hellip;"))])
    for name, doctype in (("a", '<!DOCTYPE tmx SYSTEM "tmx14.dtd" [<!ENTITY firm "Müller KG">]>'), ("b", declared)):
        files = {f"{name}.tmx": text.replace('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', doctype)}
        assert pairs_of(tmp_path, files) == [("Café für &eacute; €", "Müller KG…")]
    xml = '<!DOCTYPE dataset SYSTEM "x.dtd">' + wmt().replace(PAIRS[0][1], "caf&eacute;").partition("?>")[2]
    assert next(source_of(tmp_path, {"a.xml": xml}).pairs("train"))[1] == "café"
    tags = {"s.sgm": "<srcset><seg>a &eacute;&#999999999;&x;&#1;&#128;</seg>", "r.sgm": "<refset><seg>b</seg>"}
    assert pairs_of(tmp_path, tags) == [("a é&#999999999;&x;&#1;€", "b")]


LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 30))


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        ("", "nothing"),
        (f'<!ENTITY x "{"lol" * 99}">', "x"),
        ('<!ENTITY x "a<b/>c">', "x"),
        ('<!ENTITY eacute SYSTEM "file:///dev/zero">', "eacute"),
        (f'<!ENTITY l0 "lol">{LAUGHS}', "l1"),
    ],
)
def test_no_entity_is_dropped_or_fetched(tmp_path, declared, name):
    doctype = f'<!DOCTYPE tmx SYSTEM "tmx14.dtd" [{declared}]>'
    text = tmx([(("de", f"eins &{name};"), ("en", "one"))]).replace('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', doctype)
    refuses(pairs_of, f"a.tmx, line 1: the entity &{name}; has no plain text: write", tmp_path, {"a.tmx": text})


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.pdf": b"%PDF-1.7\n"}, "a.pdf is a PDF file"),
        ({"a.docx": b"PK\3\4 word/"}, "a zip archive, as docx"),
        ({"a.tsv": TSV.encode("utf-16")}, "a.tsv is UTF-16 text: convert it with iconv -f UTF-16"),
        ({"a.tsv": TSV.encode("utf-16-le")}, "a.tsv is UTF-16 text"),
        ({"a.bin": bytes(range(256)) * 9}, "a.bin is a binary file"),
        ({"a.tsv.xz": TSV}, "a.tsv.xz is no xz file, despite its name"),
        ({"a.tsv.bz2": bz2.compress(TSV.encode())[:-5]}, "a.tsv.bz2 is not a whole bzip2 file"),
        ({"a.tsv.xz": lzma.compress(TSV.encode())[:-5]}, "a.tsv.xz is not a whole xz file"),
        ({"a.xlf": '<?xml version="1.0"?><xliff></xliff>'}, "is XML of the kind <xliff>"),
        ({"a.txt": "<html>\n<p>eins</p></html>\n"}, "is XML of the kind <html>"),
        ({"de.po": '# eins\nmsgid ""\nmsgstr ""\n', "en.po": ""}, "de.po is a gettext catalogue: give its sentences"),
        ({"de.srt": "1\n00:00:01,000 --> 00:00:02,000\neins\n", "en.srt": ""}, "de.srt is a file of subtitles"),
        (
            {"a.en": PLAIN[1], "a.de.gz": gzip.compress(PLAIN[0].encode())},
            "languages de-en: expected a file in de, got ... a.en, which is named for en: name the source first",
        ),
        ({"a.fr": PLAIN[0], "a.en": PLAIN[1]}, "expected a file in de, got ... a.fr, which is named for fr"),
        ({"a.de": PLAIN[0], "a.fr": PLAIN[1]}, "expected a file in en, got ... a.fr, which is named for fr"),
        ({"a.eng": PLAIN[1], "a.deu": PLAIN[0]}, "expected a file in de, got ... a.eng, which is named for eng"),
        ({"a.sgm": "eins"}, "is not SGM or XML, despite its name"),
        (
            {"a.json": json.dumps({"de": "a", "en": "b"}, indent=1)},
            "line 1: not a JSON object ... one object a line",
        ),
        ({"a.jsonl": '{"de": "a", "en": "b"}\n{"de": "a"'}, "line 2: not a JSON object"),
        ({"a.jsonl": '{"fr": "a", "it": "b"}\n'}, "line 1: expected one text in de and one in en, got the keys fr, it"),
        *(
            (
                {"a.jsonl": f'{{"de": "a", "en": null}}\n{{"de": "a", "en": {value}}}\n'},
                "line 2: expected two texts, got",
            )
            for value in ("3", "0", "false", "true", "[]", "{}", "0.0")
        ),
        ({"a.jsonl": '{"de": "a", "en": "\\ud800"}\n'}, "a.jsonl, line 1: expected whole characters"),
        (
            {"a.jsonl": '{"de": "a", "de": "b", "en": "c"}\n'},
            "a.jsonl, line 1 cannot be read (the name 'de' stands twice in an object: leave one out)",
        ),
        (
            {"a.jsonl": '{"translation": {"de": "a", "en": "c", "en": "b"}}\n'},
            "line 1 cannot be read (the name 'en' stands twice",
        ),
        ({"a.csv": 'a,b\n"c"x,d\n'}, "line 2: not CSV"),
        ({"a.csv": "a,b\nc,d,e\n"}, "line 2: expected 2 columns of CSV, got 3"),
        ({"a.tsv": "a\tb\na\tb\tc\n"}, "a.tsv, line 2: expected 2 columns separated by a tab, got 3"),
        ({"a.tmx": tmx([(("fr", "un"), ("it", "uno"))])}, "no pair in de and en, but fr, it"),
        ({"a.tmx": tmx([(("de", "eins"), ("en", "one"))])[:-9]}, "a.tmx is not a whole XML file"),
        (
            {"a.tmx": "<tmx>\n<tu>caf&eacute;</tu></tmx>"},
            "a.tmx is not a whole XML ... Entity 'eacute' not defined, line 2",
        ),
        ({"a.xml": wmt(ref="fr")}, "document 'a': expected a <ref> in en, got one in fr"),
        ({"src.sgm": sgm(0), "ref.sgm": sgm(1).replace('id="3"', 'id="4"')}, "do not match (a 3, a 4"),
        ({"src.sgm": sgm(0), "ref.sgm": sgm(1, "refset") * 2}, "segment 1 of document a twice"),
        ({"a.xml": wmt().replace('id="2"', 'id="1"')}, "document 'a' has a segment of <src> twice"),
        ({"ref.sgm": sgm(1, language="en"), "src.sgm": sgm(0)}, "ref.sgm is in en: give a file in de"),
        ({"s.sgm": "<srcset><seg id='1'>eins<seg id='2'>", "r.sgm": ""}, "s.sgm: <seg> after segment 1"),
        ({"s.sgm": "<srcset>eins</seg>", "r.sgm": ""}, "s.sgm: </seg> after segment none"),
        ({"s.sgm": "<srcset><seg id='1'>eins", "r.sgm": ""}, "s.sgm ends inside segment 1"),
        ({"s.sgm": b"<srcset><seg>\xff</seg>", "r.sgm": ""}, "s.sgm is not a whole SGM file"),
        ({"src.sgm": sgm(0)}, "src.sgm has one side of a corpus (SGM)"),
        ({"a.de": PLAIN[0], "a.tsv": TSV}, "a.de has one side of a corpus (lines without tabs)"),
        ({"a.tsv": TSV, "b.tsv": ""}, "b.tsv is empty"),
        ({"a.xml": b"<dataset><doc>\xff</doc></dataset>"}, "a.xml is not a whole XML file"),  # another encoding
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path, files, message):
    refuses(pairs_of, message, tmp_path, files)


@pytest.mark.parametrize(
    "names",
    [("a.src", "a.ref"), ("a.deu", "a.eng"), ("de", "en"), ("a.DE", "a.txt"), ("a.gsw", "a.en"), ("a.de", "a.hyp")],
)
def test_names_that_fit_the_languages_or_none_are_read(tmp_path, names):
    """Suffixes such as src are codes of rare languages, too."""
    assert len(pairs_of(tmp_path, dict(zip(names, PLAIN, strict=True)))) > 1


@pytest.mark.parametrize(
    ("name", "content", "package"),
    [("a.parquet", b"PAR1\0\0PAR1", "pyarrow"), ("a.tsv.zst", b"\x28\xb5\x2f\xfd\0", "backports.zstd")],
)
def test_a_missing_package_is_named(tmp_path, monkeypatch, name, content, package):
    for module in ("pyarrow", "pyarrow.parquet", "compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, module, None)
    refuses(
        pairs_of, f"{name} is a ... file, which needs the package {package}: pip install", tmp_path, {name: content}
    )


class TestParquet:
    def pairs(self, tmp_path, columns, **how):
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet", **how)
        return list(ParallelText("mine", "de", "en", train=tmp_path / "a.parquet").pairs("train"))

    def test_columns_are_found_by_their_names(self, tmp_path):
        sources, targets = map(list, zip(*PAIRS, strict=True))
        rows = [{"de": source, "en": target} for source, target in PAIRS]
        for columns in (
            {"id": [1, 2, 3], "en": targets, "de": sources},
            {"translation": rows},
            {"translation": targets, "source": sources},
        ):
            assert self.pairs(tmp_path, columns, row_group_size=2) == PAIRS
        many = [{"de": f"Satz {i} " * 9, "en": f"sentence {i}"} for i in range(100_000)]  # too many for one dictionary
        assert self.pairs(tmp_path, {"translation": many})[-1] == (("Satz 99999 " * 9).strip(), "sentence 99999")
        assert self.pairs(tmp_path, {"de": ["a", None], "en": ["b", "c"]}, use_dictionary=False)[1] == ("", "c")

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"de": ["a", "b"], "en": ["c", "x" * 9_000_000]}, "a.parquet, row 2: more than 8,388,608 bytes"),
            ({"de": ["a"], "en": ["x" * 70_000_000]}, "expected two columns of text with at most 67,108,864 bytes"),
            ({"de": [1], "en": ["x"]}, "expected two columns of text"),
            ({"de": [["a"]], "en": ["x"]}, "expected two columns of text"),
            ({"de": ["a"], "en": [b"\xff"]}, "a.parquet, row 1: expected two texts, got"),
            ({"fr": ["a"], "en": ["x"]}, "expected one text in de and one in en, got the keys fr, en"),
        ],
    )
    def test_what_is_no_sentence_is_refused(self, tmp_path, columns, message):
        refuses(self.pairs, message, tmp_path, columns, compression="zstd")


def test_zstd_is_read_where_a_module_is(tmp_path, monkeypatch):
    module = types.SimpleNamespace(open=lambda file, mode: io.BytesIO(TSV.encode()))
    monkeypatch.setitem(sys.modules, "compression.zstd", module)
    assert pairs_of(tmp_path, {"a.tsv.zst": b"\x28\xb5\x2f\xfd\0"}) == PAIRS


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_bytes_are_read_or_refused(tmp_path_factory, data):
    """A file of a format, changed at some places, ends in pairs of single lines or in a `PadirError`."""
    kind, suffix = data.draw(st.sampled_from(sorted(READ))), data.draw(st.sampled_from(sorted(PACKED)))
    files = {}
    for name, content in READ[kind].items():
        raw = bytearray(PACKED[suffix](content.encode()))
        for place, byte in data.draw(
            st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=3)
        ):
            raw[place] = byte
        files[name + suffix] = bytes(raw[: data.draw(st.integers(0, 2 * len(raw)))])
    try:
        pairs = list(itertools.islice(source_of(tmp_path_factory.mktemp("f"), files).pairs("train"), 99))
    except PadirError:
        return
    assert pairs and not any("\n" in text for pair in pairs for text in pair)
