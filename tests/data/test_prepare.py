import dataclasses
import json

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from support.faults import flip_a_bit, refuses_damage, refuses_forgery
from support.refusals import refuses
from support.small_corpus import Listed, Numbers

from padir.data.prepare import _MOST_CHARACTERS, _batches, prepare
from padir.data.prepared import LengthLimits, SplitInfo, load_manifest, load_tokenizer, read_lengths, read_text
from padir.data.records import SplitWriter
from padir.data.sources import ParallelText
from padir.storage.files import beside
from padir.storage.manifest import sealed


def records(path) -> list[list[int]]:
    reader = ArrayRecordReader(str(path))
    return [np.frombuffer(record, "<i4").tolist() for record in reader.read_all()]


PAIRS = (
    ("eins zwei", "one two"),
    ("", "one"),
    ("eins", "   "),
    ("eins eins eins eins eins", "one"),  # 6 source tokens with EOS
    ("eins", "one one one one"),  # 2 and 5 tokens with EOS
    ("drei", "one one one one one"),
    ("vier", "four five five"),  # 2 and 4 tokens: no more than the ratio 2
)


@pytest.fixture
def out(tmp_path):
    """The folder that tests prepare."""
    return tmp_path / "out"


@pytest.fixture
def made(out, tokenizer):
    """A function that prepares `out`; gives its manifest."""

    def made(source=Numbers(), **settings):  # noqa: B008
        return prepare(source, tokenizer, out, progress=False, **settings)

    return made


SHARD = "train-00000-of-00001.arrayrecord"


def test_records_counts_and_reasons(out, made, tokenizer):
    manifest = made(Listed(PAIRS), limits=LengthLimits(5, 5, 2.0))
    one, two, four, five, eins, zwei, vier = tokenizer.encode("one two four five eins zwei vier")
    assert records(out / SHARD) == [[3, eins, zwei, 1, one, two, 1], [2, vier, 1, four, five, five, 1]]
    assert np.load(out / "train.lengths.npy").tolist() == [[3, 3], [2, 4]]
    train = manifest.splits["train"]
    assert (train.read, train.written, train.source_tokens, train.target_tokens) == (7, 2, 5, 7)
    assert (train.longest_source, train.longest_target) == (3, 4)
    reasons = ["empty source", "empty target", "source too long", "length ratio", "target too long"]
    assert train.dropped == dict.fromkeys(reasons, 1)
    dropped = [json.loads(line) for line in (out / "dropped-train.jsonl").read_text().splitlines()]
    assert [(d["line"], d["reason"]) for d in dropped] == list(enumerate(reasons, 2))
    assert manifest == load_manifest(out, verify=True)
    written = json.loads((out / "manifest.json").read_text())
    assert (written["format"], written["version"], len(written["manifest_sha256"])) == ("padir-prepared", 3, 64)
    assert written["source"] == {"name": "listed", "source_language": "de", "target_language": "en"}
    vocabulary = {"sha256": tokenizer.sha256, "size": 401, "num_sentinels": 100, "num_placeholders": 0}
    assert written["vocabulary"] == vocabulary
    assert written["limits"] == {"max_source_tokens": 5, "max_target_tokens": 5, "max_length_ratio": 2.0, "drop": []}


def test_a_full_disk_leaves_no_file_open(tmp_path):
    (tmp_path / "dropped-train.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError), SplitWriter(tmp_path, "train", LengthLimits()) as writer:
        writer.write(("eins", "one"), [7, 1], [8, 1])
        writer.write(("", "one"), [1], [8, 1])
    assert records(tmp_path / SHARD) == [[2, 7, 1, 8, 1]]


def test_evaluation_text_is_whole_and_untouched(out, made, tokenizer):
    validation = (("", "one"), (" eins\u2028zwei\r", "\ufeffone"), ("eins " * 500, "one"))
    assert made(Listed(PAIRS, validation)).splits["validation"].written == 1
    assert tuple(zip(*read_text(out, "validation"), strict=True)) == validation
    refuses(read_text, "has the text of validation, not of 'train'", out, "train")
    assert load_tokenizer(out).ids == tokenizer.ids


def test_corpora_are_counted_by_name(tmp_path, out, made):
    (tmp_path / "news.tsv").write_text("eins\tone\nzwei\t\n")
    (tmp_path / "talks.csv").write_text('de,en\n"drei","three"\n')
    train = made(ParallelText("mine", "de", "en", train=(tmp_path / "news.tsv", tmp_path / "talks.csv"))).splits[
        "train"
    ]
    assert train.corpora == {"news": {"read": 2, "written": 1}, "talks": {"read": 1, "written": 1}}
    assert load_manifest(out).splits["train"] == train


def test_the_same_inputs_give_the_same_bytes(tmp_path, made, tokenizer):
    assert prepare(Numbers(), tokenizer, tmp_path / "again", progress=False) == made()


def test_an_up_to_date_folder_is_kept(out, made):
    made()
    before = (out / "manifest.json").stat().st_ino
    made()
    assert (out / "manifest.json").stat().st_ino == before


@pytest.mark.parametrize(
    "change",
    [
        {"source": Numbers(num_train=299)},
        {"source": dataclasses.replace(Numbers(), name="other")},
        {"limits": LengthLimits(max_source_tokens=255)},
        {"limits": LengthLimits(max_length_ratio=3.0)},
        {"placeholders": 0.5},
    ],
)
def test_another_input_is_not_taken_for_the_same(out, made, change):
    before = made()
    refuses(made, "prepared from other text, vocabulary or limits: ... set overwrite", **change)
    assert load_manifest(out, verify=True) == before
    after = made(**change, overwrite=True)
    assert load_manifest(out, verify=True) == after == made(**change) != before


def test_a_folder_of_other_things_is_never_replaced(out, made):
    out.mkdir()
    (out / "dear.txt").write_text("dear")
    refuses(made, "holds files that `padir prepare` did not make", overwrite=True)
    assert [path.name for path in out.iterdir()] == ["dear.txt"]
    (out / "dear.txt").unlink()
    assert made().splits["train"].read == 300


@pytest.mark.parametrize("name", ["letter.txt", "letters/dear.txt", ".hidden"])
def test_overwriting_deletes_nothing_that_padir_did_not_make(out, made, name):
    before = made()
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("dear")
    refuses(made, f"padir did not make, such as {name}: move them away", Numbers(num_train=9), overwrite=True)
    assert (out / name).read_text() == "dear"
    assert made() == before  # kept, with the file


class Breaks(Numbers):
    """A source that fails after some pairs, as a lost disk or Ctrl-C would."""

    def pairs(self, split):
        yield from super().pairs(split)
        if split == "validation":
            raise KeyboardInterrupt


def test_what_a_killed_process_left_is_removed(tmp_path, out, made):
    gone, stay = beside(out, "partial"), beside(tmp_path / "out.b", "partial")
    for folder in (gone, stay):
        folder.mkdir()
        (folder / "train").touch()
    for _ in range(2):  # a folder that is kept removes them, too
        made()
        assert sorted(tmp_path.iterdir()) == sorted([stay, out])
        gone.mkdir()


def test_a_failed_overwrite_leaves_the_old_folder(tmp_path, out, made):
    before = made()
    with pytest.raises(KeyboardInterrupt):
        made(Breaks(), overwrite=True)
    assert load_manifest(out, verify=True) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ((("", "a"), ("b", " ")), "pair was dropped (1 empty source, 1 empty target): give files whose"),
        ((("eins zwei", "a"),), "pair was dropped (1 source too long): raise the limits"),
        ((("a\nb", "c"),), "listed train, pair 1: a sentence must be one line"),
    ],
)
def test_pairs_of_which_nothing_can_be_made(made, pairs, words):
    refuses(made, words, Listed(pairs), limits=LengthLimits(max_source_tokens=2))


def test_a_changed_folder_is_noticed(out, made):
    made()
    shard = out / SHARD
    whole = shard.read_bytes()
    flip_a_bit(shard)
    load_manifest(out)  # the size is right
    refuses(made, "was changed or damaged ... set overwrite")
    made(overwrite=True)
    assert shard.read_bytes() == whole


def test_a_foreign_vocabulary_is_noticed(prepared):
    path = prepared / "vocab.model"
    model = path.read_bytes()
    assert model.count("▁eins".encode()) == 1
    path.write_bytes(model.replace("▁eins".encode(), "▁eans".encode()))  # as many bytes
    refuses(load_tokenizer, "is not the vocabulary of the manifest", prepared)


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (None, "has no manifest.json"),
        ('{"format": "other", "version": 1, "files": {}}', "must be of format padir-prepared 3, got other 1"),
        ('{"format": "padir-prepared", "version": 9, "files": {}}', "got padir-prepared 9"),
    ],
)
def test_not_a_prepared_folder(tmp_path, manifest, message):
    if manifest is not None:
        (tmp_path / "manifest.json").write_text(manifest)
    refuses(load_manifest, message, tmp_path)
    refuses(load_manifest, "does not exist: run `padir prepare`", tmp_path / "nowhere")


@pytest.fixture
def prepared(out, made):
    made()
    return out


def test_damage_and_forgery_are_refused(prepared):
    refuses_damage(lambda folder: load_manifest(folder, verify=True), prepared)
    refuses_forgery(load_manifest, prepared, ["train.lengths.npy", "vocab.model"])


EMPTY = SplitInfo(0, 0, {}, 0, 0, 0, 0, (), "")


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("source", "target_language"), "/../../outside", "does not name validation./../../outside.txt"),
        (("splits", "train", "shards"), ["../outside"], "does not name ../outside"),
        (("splits", "../x"), dataclasses.asdict(EMPTY), "does not name ../x.lengths.npy"),
        (("splits", "../x"), {"shards": []}, "is damaged"),
        (("splits",), [1], "is damaged"),
        (("source",), None, "is damaged"),
        (("vocabulary", "num_sentinels"), "x", "is damaged"),
        (("splits", "train", "longest_source"), [1], "is damaged"),
    ],
)
def test_a_manifest_names_its_own_files_only(prepared, path, value, message):
    manifest = json.loads((prepared / "manifest.json").read_text())
    *parents, last = path
    place = manifest
    for parent in parents:
        place = place[parent]
    place[last] = value
    (prepared / "manifest.json").write_text(json.dumps(sealed(manifest)))
    refuses(load_manifest, message, prepared)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([[3, "x"], [None, {}]], object), "lengths.npy cannot be read ... Object arrays"),
        *((each, "must have 300 pairs in train") for each in (np.zeros((3, 2), np.int32), np.zeros((300, 2)))),
        (np.zeros(300, np.int32), "must have 300 pairs in train"),
    ],
)
def test_lengths_that_are_none(prepared, array, words):
    np.save(prepared / "train.lengths.npy", array, allow_pickle=True)
    refuses(read_lengths, words, prepared, "train", 300)


def test_lengths_that_ask_for_all_memory(prepared):
    path = prepared / "train.lengths.npy"
    path.write_bytes(path.read_bytes().replace(b"(300, 2)", b"(3, 9999999999999)"))
    refuses(read_lengths, "lengths.npy cannot be read", prepared, "train", 300)


def test_batches_are_of_few_pairs_or_few_characters():
    long = ("x" * (_MOST_CHARACTERS // 4), "y" * (_MOST_CHARACTERS // 4))
    assert [len(batch) for batch in _batches(iter([long] * 5))] == [2, 2, 1]
    assert [len(batch) for batch in _batches(iter([("a", "b")] * 2_500))] == [1024, 1024, 452]


class TestPlaceholders:
    PAIRS = (("eins 77 zwei", "one 77 two"), ("drei", "three"), ("vier 5", "four 6"))

    def test_equal_spans_of_training_become_sentinels(self, out, made):
        manifest = made(Listed(self.PAIRS, self.PAIRS), placeholders=1.0)
        marked = load_tokenizer(out)
        (first, *others) = records(out / SHARD)
        source, target = first[1 : first[0] + 1], first[first[0] + 1 :]
        (mark,) = [i for i in source if i >= marked.ids.end_regular]
        assert target.count(mark) == 1 and mark not in marked.ids.special
        assert max(map(max, others)) < marked.ids.end_regular
        assert manifest.splits["train"].placeholders == {"pairs": 1, "numbers": 1}
        assert manifest.splits["validation"].placeholders == {} and manifest.placeholders == 1.0
        assert read_text(out, "validation")[0][0] == "eins 77 zwei"
        assert manifest.vocabulary.num_placeholders == 16 and "16 placeholders" in str(manifest.vocabulary)

    def test_the_text_of_a_pair_decides_about_it(self, made):
        pairs = tuple((f"eins {i}", f"one {i}") for i in range(400))
        a, b = (made(Listed(order), placeholders=0.25, overwrite=True) for order in (pairs, pairs[::-1]))
        assert a.splits["train"].placeholders == b.splits["train"].placeholders
        assert 70 < a.splits["train"].placeholders["pairs"] < 130

    @pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
    def test_a_wrong_share_is_refused(self, made, share):
        refuses(made, "placeholders must be in [0, 1]", placeholders=share)
