"""Recipes: the WMT sets from WMT's own files, packed and unpacked; what is missing, damaged or of another version."""

import bz2
import gzip
import itertools
import json
import lzma
import zipfile
from pathlib import Path

import pytest
from support import wmt_files
from support.commands import refused, results
from support.refusals import refuses

from padir.data import recipes
from padir.data.formats import Corpus
from padir.data.recipes import COUNTS, PARTS, RECIPES, Recipe
from padir.data.sources import SPLITS, Source
from padir.errors import PadirError
from padir.interop.seqio_tasks import TFDS_SETS

PAGE = Path(__file__).parents[2] / "docs" / "running.md"


@pytest.fixture
def downloads(tmp_path, monkeypatch):
    """A function that writes the files of a year, and returns their folder and the pairs of each part."""

    def write(year, **how):
        return tmp_path / year, wmt_files.write(monkeypatch, tmp_path / year, year, **how)

    return write


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", RECIPES)
def test_pairs_come_from_all_parts(name, packed, downloads):
    year, source_language, target_language = name.split("_")
    folder, expected = downloads(year, packed=packed)
    source = Recipe(name, folder)
    assert isinstance(source, Source) and source.splits == SPLITS and {*RECIPES} == {*TFDS_SETS}
    assert (source.source_language, source.target_language) == (source_language, target_language)
    turn = slice(None, None, 1 if target_language == "en" else -1)
    for split in SPLITS:
        parts = source.corpora(split)
        assert [part.name for part in parts] == [part.name for part in PARTS[year][split]]
        found = {part.name: [pair[turn] for pair in part.pairs] for part in parts}
        assert found == {part.name: expected[part.name] for part in PARTS[year][split]}
        assert list(source.pairs(split)) == [pair[turn] for pairs in found.values() for pair in pairs]


@pytest.mark.parametrize("packed", [True, False])
def test_linked_folders_are_entered_once(packed, downloads, tmp_path):
    folder, expected = downloads("wmt16", packed=packed)
    place = tmp_path / "place"
    place.mkdir()
    for name in ("files", "again"):  # the same files twice
        (place / name).symlink_to(folder, target_is_directory=True)
    (folder / "self").symlink_to(folder, target_is_directory=True)
    (folder / "up").symlink_to(tmp_path, target_is_directory=True)
    for name in ("files", "again"):  # two folders with links to each other
        (tmp_path / name).mkdir()
    (tmp_path / "files/b").symlink_to(tmp_path / "again", target_is_directory=True)
    (tmp_path / "again/a").symlink_to(tmp_path / "files", target_is_directory=True)
    (folder / "files").symlink_to(tmp_path / "files", target_is_directory=True)
    pairs = [pair for part in PARTS["wmt16"]["train"] for pair in expected[part.name]]
    assert list(Recipe("wmt16_ro_en", place).pairs("train")) == pairs


@pytest.mark.parametrize("year", PARTS)
def test_copies_with_other_line_ends_give_the_same_pairs(year, downloads):
    """Some text has a carriage return inside or at its end, which stays."""
    folder, expected = downloads(year, packed=False)
    for path in folder.rglob("*.*"):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    (name,) = (name for name in RECIPES if name.startswith(year) and name.endswith("_en"))
    found = {part.name: list(part.pairs) for split in SPLITS for part in Recipe(name, folder).corpora(split)}
    assert found == expected


def packed_anew(path, form):
    """Packs the content of a .tgz file in another form, and removes it."""
    stem = path.name.removesuffix(".tgz").removesuffix(".tar.gz")
    open_as = {".tar": open, ".tar.gz": gzip.open, ".tgz": gzip.open, ".tar.xz": lzma.open, ".tar.bz2": bz2.open}
    content = gzip.decompress(path.read_bytes())
    path.unlink()
    new = path.with_name(stem.upper() + form.upper())
    with open_as[form](new, "wb") as file:
        file.write(content)
    return new


@pytest.mark.parametrize("form", [".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2"])
def test_archives_of_another_compression_and_case_are_read(form, downloads):
    folder, expected = downloads("wmt17")
    packed = [packed_anew(path, form) for path in (folder / "dev.tgz", folder / "UNv1.0.en-zh.tar.gz")]
    (folder / "neu2017.zip").rename(folder / "NEU2017.Zip")
    source = Recipe("wmt17_zh_en", folder, checked=form != ".tar.gz")  # which was packed again
    assert {part.name: list(part.pairs) for split in SPLITS for part in source.corpora(split)} == expected
    for path in packed:
        whole = path.read_bytes()
        for share in range(8):
            path.write_bytes(whole[: len(whole) * share // 8])
            try:
                found = list(source.pairs("train"))
            except PadirError:
                continue
            assert form == ".tar"  # without a checksum; all texts that are read are whole
            assert found == [pair for part in PARTS["wmt17"]["train"] for pair in expected[part.name]]
        path.write_bytes(whole)


def test_a_part_that_is_packed_and_unpacked_is_refused(downloads):
    """A part may be unpacked in part; which one is meant is not known."""
    folder, _ = downloads("wmt17")
    for name in ("datum2017/Book1_cn.txt", "datum2017/Book1_en.txt"):
        (folder / "datum2017").mkdir(exist_ok=True)
        (folder / name).write_bytes(b"one line\n")
        words = "datum2017 is there twice: packed in ... datum2017.zip, and unpacked, ... Book1_cn.txt: remove the"
        refuses(Recipe, words, "wmt17_zh_en", folder)
    (folder / "datum2017.zip").unlink()
    assert Recipe("wmt17_zh_en", folder)
    (folder / "datum2017/Book1_en.txt").unlink()
    refuses(Recipe, "lacks datum2017.zip", "wmt17_zh_en", folder)


def test_files_of_another_size_are_refused_before_they_are_read(downloads):
    folder, expected = downloads("wmt17")
    kept = ("neu2017/neu2017_ch.txt", "neu2017/neu2017_en.txt")
    with zipfile.ZipFile(folder / "neu2017.zip") as archive:
        texts = [archive.read(name).split(b"\n")[0] + b"\n" for name in kept]
    with zipfile.ZipFile(folder / "neu2017.zip", "w") as archive:  # another version, with fewer pairs
        for name, text in zip(kept, texts, strict=True):
            archive.writestr(name, text)
    (folder / "UNv1.0.en-zh.tar.gz").write_bytes(b"cut")
    refusal = refuses(Recipe, "UNv1.0.en-zh.tar.gz has 3 bytes, not ... neu2017.zip has ", "wmt17_zh_en", folder)
    assert str(refusal).count("bytes") == 2
    source = Recipe("wmt17_zh_en", folder, ("uncorpus_v1",), checked=False)
    assert len([*source.pairs("train")]) == sum(len(expected[part.name]) for part in source._parts("train")) - 3
    assert Recipe("wmt17_zh_en", folder, ("uncorpus_v1", "neu2017"))


def test_files_without_a_known_size_are_listed(downloads, caplog):
    folder, _ = downloads("wmt16")
    with caplog.at_level("INFO", "padir"):
        assert Recipe("wmt16_ro_en", folder) and not caplog.messages
        packed_anew(folder / "dev.tgz", ".tar")
        (folder / "en-ro.tmx").write_bytes(gzip.decompress((folder / "en-ro.tmx.gz").read_bytes()))
        (folder / "en-ro.tmx.gz").unlink()
        assert Recipe("wmt16_ro_en", folder, checked=False) and not caplog.messages
        assert Recipe("wmt16_ro_en", folder)
    (message,) = caplog.messages
    assert message.endswith(f"is not known: {folder}/en-ro.tmx, {folder}/DEV.TAR")


def test_pieces_and_other_archives_are_named(downloads):
    folder, _ = downloads("wmt17")
    united = folder / "UNv1.0.en-zh.tar.gz"
    for number in range(2):
        united.with_name(f"{united.name}.0{number}").write_bytes(b"piece")
    united.unlink()
    (folder / "neu2017.zip").rename(folder / "NEU2017.7z")
    (folder / "datum2017.zip").rename(folder / "datum2017.tar.gz")
    words = ["lacks UNv1.0.en-zh.tar.gz", "datum2017.zip", "neu2017.zip", "join pieces with cat and unpack other"]
    words += ["NEU2017.7z", "UNv1.0.en-zh.tar.gz.00", "UNv1.0.en-zh.tar.gz.01", "datum2017.tar.gz", "--set without="]
    refuses(Recipe, " ... ".join(words), "wmt17_zh_en", folder)


def test_missing_files_are_listed_and_may_be_left_out(downloads):
    folder, expected = downloads("wmt17")
    for name in ("neu2017.zip", "UNv1.0.en-zh.tar.gz"):
        (folder / name).unlink()
    lacking = " ... ".join(
        [
            "lacks UNv1.0.en-zh.tar.gz from https://storage.googleapis.com/",
            "neu2017.zip from ftp://nlp.nju.edu.cn/parallel/neu2017.zip (the server has not answered since 2019",
            "go on without these parts: --set without='casia2015 uncorpus_v1 neu2017'",
        ]
    )
    refuses(Recipe, lacking, "wmt17_zh_en", folder, ("casia2015",))
    source = Recipe("wmt17_zh_en", folder, ("casia2015", "uncorpus_v1", "neu2017"))
    kept = [part.name for part in source.corpora("train")]
    assert kept == ["newscommentary_v12", "casict2011", "casict2015", "datum2015", "datum2017"]
    assert len(list(source.pairs("train"))) == sum(len(expected[name]) for name in kept)


@pytest.mark.parametrize(
    ("name", "without", "words"),
    [
        ("wmt16_ro_de", (), "no recipe 'wmt16_ro_de': did you mean 'wmt16_ro_en'"),
        ("wmt16_ro_en", ("setimes",), "no part 'setimes': did you mean 'setimes_2'"),
        ("wmt16_ro_en", ("setimes_2", "europarl_v8_16"), "has no part: keep one"),
    ],
)
def test_wrong_names(downloads, name, without, words):
    refuses(Recipe, words, name, downloads("wmt16")[0], without)


def test_wrong_folders_and_splits(downloads, tmp_path):
    refuses(Recipe, "no folder", "wmt16_ro_en", tmp_path / "none")
    refuses(Recipe("wmt16_ro_en", downloads("wmt16")[0]).pairs, "no split 'dev'", "dev")


def test_another_number_of_pairs_is_refused(downloads, monkeypatch):
    folder, _ = downloads("wmt16")
    source = Recipe("wmt16_en_ro", folder)
    monkeypatch.setitem(COUNTS["wmt16"], "train", 8)
    refuses(lambda: list(source.pairs("train")), "train has 7 pairs (europarl_v8_16 4, setimes_2 3), not 8")
    monkeypatch.setitem(COUNTS["wmt16"], "test", 1)
    refuses(lambda: next(source.pairs("train")), "test has 3 pairs")  # before training text is read


@pytest.mark.parametrize("name", ["training-parallel-nc-v12.tgz", "UNv1.0.en-zh.tar.gz", "datum2017.zip"])
def test_cut_and_changed_archives_are_refused(name, downloads):
    folder, _ = downloads("wmt17")
    source, whole = Recipe("wmt17_zh_en", folder), (folder / name).read_bytes()
    places = [whole.find(b"red train")] if name.endswith(".zip") else [0, len(whole) // 2, len(whole) - 8]
    changed = [bytes(byte ^ (i == place) for i, byte in enumerate(whole)) for place in places]
    changed += [whole[: len(whole) * share // 8] for share in range(8)]
    for content in changed:
        (folder / name).write_bytes(content)
        refuses(lambda: list(source.pairs("train")))


def test_other_files_of_the_same_name_are_refused(downloads):
    folder, _ = downloads("wmt14")
    (folder / "old").mkdir()
    dev = (folder / "dev.tgz").rename(folder / "old" / "dev.tgz")
    (folder / "dev.tgz").write_bytes((folder / "training-parallel-nc-v9.tgz").read_bytes())
    refuses(Recipe, "dev.tgz is there twice, also as ... : remove one", "wmt14_de_en", folder)
    dev.unlink()
    words = "wmt14_de_en: ... dev.tgz has ... bytes, not ... : fetch them again, or use them ... --set checked=false"
    refuses(Recipe, words, "wmt14_de_en", folder)
    source = Recipe("wmt14_de_en", folder, checked=False)
    refuses(lambda: next(source.pairs("train")), "dev.tgz has no newstest2013.de: fetch http://data.statmt.org/wmt19/")


def test_texts_that_do_not_fit_are_refused(downloads):
    folder, _ = downloads("wmt17", packed=False)
    source = Recipe("wmt17_zh_en", folder)
    text = folder / "datum2017.zip/datum2017/Book10_cn.txt"
    text.write_bytes(text.read_bytes() + b"one more\n")
    refuses(lambda: list(source.pairs("train")), "Book10_cn.txt has 7 lines but ... Book10_en.txt has 6")
    text.unlink()
    source = Recipe("wmt17_zh_en", folder)
    refuses(lambda: list(source.pairs("train")), "Book1_cn.txt and ... Book10_en.txt are no pair by their names: fetch")


def test_files_of_a_set_are_paired_by_their_names(downloads):
    """Another number of files is found, and so is the same number of other files, which have as many lines."""
    folder, _ = downloads("wmt17", packed=False)
    books = folder / "datum2017.zip/datum2017"

    def read():
        return list(Recipe("wmt17_zh_en", folder, without=("neu2017",)).pairs("train"))

    (books / "Book2_cn.txt").unlink()
    refuses(read, "datum2017: no file and ... Book2_en.txt are no pair by their names: fetch datum2017.zip again")
    (books / "Book10_en.txt").unlink()
    refuses(read, "datum2017: ... Book10_cn.txt and ... Book1_en.txt are no pair by their names")


def test_files_of_hugging_face_stand_for_whole_splits(downloads, monkeypatch):
    folder, _ = downloads("wmt16")
    (folder / "training-parallel-ep-v8.tgz").unlink()
    parquet = [folder / f"ro-en/train-0000{i}-of-00002.parquet" for i in range(2)]
    parquet[0].parent.mkdir()
    for path in parquet:
        path.write_bytes(b"PAR1")
    monkeypatch.setattr(
        recipes, "corpora", lambda paths, languages: [Corpus(p.name, iter([languages] * 3)) for p in paths]
    )
    monkeypatch.setitem(COUNTS["wmt16"], "train", 6)
    source = Recipe("wmt16_en_ro", folder)
    assert list(source.pairs("train")) == [("en", "ro")] * 6 and len(list(source.pairs("test"))) == 3


def test_prepare_keeps_the_counts_of_parts(downloads, vocab_path, tmp_path, capsys):
    folder, _ = downloads("wmt16")
    (folder / "en-ro.tmx.gz").unlink()
    command = f"prepare --vocab {vocab_path} --output {tmp_path}/data --recipe wmt16_ro_en"
    assert "--set without='setimes_2'" in refused(capsys, f"{command} --downloads {folder}")
    found, _ = results(capsys, tmp_path / "r.json", f"{command} --downloads {folder} --set without=setimes_2")
    assert found == json.loads((tmp_path / "data/manifest.json").read_text()) | found
    assert found["source"] == {"name": "wmt16_ro_en", "source_language": "ro", "target_language": "en"}
    assert found["splits"]["train"]["corpora"] == {"europarl_v8_16": {"read": 4, "written": 3}}
    assert "--recipe needs --downloads DIR" in refused(capsys, command)
    assert "--recipe names all files" in refused(capsys, f"{command} --downloads {folder} --task toy_de_en")
    (folder / "dev.tgz").write_bytes((folder / "dev.tgz").read_bytes() + bytes(512))  # gzip allows zeros at the end
    command = f"{command} --overwrite --downloads {folder} --set without=setimes_2"
    assert "dev.tgz has" in refused(capsys, command)
    results(capsys, tmp_path / "r.json", f"{command} checked=false")
    for option in (f"--downloads {folder}", "--set without=setimes_2", "--set checked=false"):
        assert "give --recipe" in refused(capsys, f"vocab --task toy_de_en --output {tmp_path}/v {option}")


def test_the_page_lists_every_file():
    page = PAGE.read_text(encoding="utf-8")
    parts = itertools.chain.from_iterable(parts for splits in PARTS.values() for parts in splits.values())
    lacking = [
        part.name
        for part in parts
        if f"`{part.file}`" not in page or part.origin not in page or f"| {part.size / 1e6:,.0f} |" not in page
    ]
    assert lacking == []
