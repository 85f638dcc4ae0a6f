import dataclasses
import json

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader
from support.faults import flip_a_bit, refuses_damage, refuses_forgery
from support.small_corpus import Listed, Numbers

from padir.data.prepare import _MOST_CHARACTERS, _batches, prepare
from padir.data.prepared import LengthLimits, SplitInfo, load_manifest, load_tokenizer, read_lengths, read_text
from padir.data.sources import ParallelText
from padir.errors import PadirError
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
    ("vier fünf", "four five"),
)


def test_records_counts_and_reasons(tmp_path, tokenizer):
    manifest = prepare(Listed(PAIRS), tokenizer, tmp_path / "out", LengthLimits(5, 5, 2.0), progress=False)
    one, two, four, five = (tokenizer.encode(word)[0] for word in ("one", "two", "four", "five"))
    eins, zwei, vier, fünf = (tokenizer.encode(word)[0] for word in ("eins", "zwei", "vier", "fünf"))
    assert records(tmp_path / "out" / "train-00000-of-00001.arrayrecord") == [
        [3, eins, zwei, 1, one, two, 1],
        [3, vier, fünf, 1, four, five, 1],
    ]
    assert np.load(tmp_path / "out" / "train.lengths.npy").tolist() == [[3, 3], [3, 3]]
    train = manifest.splits["train"]
    assert (train.read, train.written, train.source_tokens, train.target_tokens) == (7, 2, 6, 6)
    assert (train.longest_source, train.longest_target) == (3, 3)
    assert train.dropped == {
        "empty source": 1,
        "empty target": 1,
        "source too long": 1,
        "target too long": 1,
        "length ratio": 1,
    }
    dropped = [json.loads(line) for line in (tmp_path / "out" / "dropped-train.jsonl").read_text().splitlines()]
    assert [(d["line"], d["reason"]) for d in dropped] == [
        (2, "empty source"),
        (3, "empty target"),
        (4, "source too long"),
        (5, "length ratio"),
        (6, "target too long"),
    ]
    assert manifest == load_manifest(tmp_path / "out", verify=True)
    written = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (written["format"], written["version"], len(written["manifest_sha256"])) == ("padir-prepared", 3, 64)
    assert written["source"] == {"name": "listed", "source_language": "de", "target_language": "en"}
    vocabulary = {"sha256": tokenizer.sha256, "size": 401, "num_sentinels": 100, "num_placeholders": 0}
    assert written["vocabulary"] == vocabulary
    assert written["limits"] == {"max_source_tokens": 5, "max_target_tokens": 5, "max_length_ratio": 2.0, "drop": []}


def test_evaluation_text_is_whole_and_untouched(tmp_path, tokenizer):
    validation = (("", "one"), (" eins\u2028zwei\r", "\ufeffone"), ("eins " * 500, "one"))
    manifest = prepare(Listed(PAIRS, validation), tokenizer, tmp_path / "out", progress=False)
    assert manifest.splits["validation"].written == 1
    assert tuple(zip(*read_text(tmp_path / "out", "validation"), strict=True)) == validation
    with pytest.raises(PadirError, match="has the text of validation, not of 'train'"):
        read_text(tmp_path / "out", "train")
    assert load_tokenizer(tmp_path / "out").ids == tokenizer.ids


def test_corpora_are_counted_by_name(tmp_path, tokenizer):
    (tmp_path / "news.tsv").write_text("eins\tone\nzwei\t\n")
    (tmp_path / "talks.csv").write_text('de,en\n"drei","three"\n')
    source = ParallelText("mine", "de", "en", train=(tmp_path / "news.tsv", tmp_path / "talks.csv"))
    train = prepare(source, tokenizer, tmp_path / "out", progress=False).splits["train"]
    assert train.corpora == {"news": {"read": 2, "written": 1}, "talks": {"read": 1, "written": 1}}
    assert load_manifest(tmp_path / "out").splits["train"] == train


def test_shards(tmp_path, tokenizer):
    manifest = prepare(Numbers(num_train=10), tokenizer, tmp_path / "out", records_per_shard=4, progress=False)
    shards = manifest.splits["train"].shards
    assert shards == tuple(f"train-0000{i}-of-00003.arrayrecord" for i in range(3))
    counts = [len(records(tmp_path / "out" / name)) for name in shards]
    assert counts == [4, 4, 2]
    texts = [f"{a} | {b}" for a, b in Numbers(num_train=10).pairs("train")]
    read = [record for name in shards for record in records(tmp_path / "out" / name)]
    assert texts == [f"{tokenizer.decode(r[1 : r[0]])} | {tokenizer.decode(r[r[0] + 1 : -1])}" for r in read]


def test_the_same_inputs_give_the_same_bytes(tmp_path, tokenizer):
    first, second = (prepare(Numbers(), tokenizer, tmp_path / name, progress=False) for name in "ab")
    assert first == second


def test_an_up_to_date_folder_is_kept(tmp_path, tokenizer):
    prepare(Numbers(), tokenizer, tmp_path / "out", progress=False)
    before = (tmp_path / "out" / "manifest.json").stat().st_ino
    prepare(Numbers(), tokenizer, tmp_path / "out", progress=False)
    assert (tmp_path / "out" / "manifest.json").stat().st_ino == before


@pytest.mark.parametrize(
    "change",
    [
        {"source": Numbers(num_train=299)},
        {"source": dataclasses.replace(Numbers(), name="other")},
        {"limits": LengthLimits(max_source_tokens=255)},
        {"limits": LengthLimits(max_length_ratio=3.0)},
    ],
)
def test_another_input_is_not_taken_for_the_same(tmp_path, tokenizer, change):
    arguments = {"source": Numbers(), "tokenizer": tokenizer, "output_dir": tmp_path / "out", "progress": False}
    before = prepare(**arguments)
    with pytest.raises(PadirError, match="prepared from other text, vocabulary or limits: .*set overwrite"):
        prepare(**arguments | change)
    assert load_manifest(tmp_path / "out", verify=True) == before
    after = prepare(**arguments | change, overwrite=True)
    assert load_manifest(tmp_path / "out", verify=True) == after != before


def test_a_folder_of_other_things_is_never_replaced(tmp_path, tokenizer):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    with pytest.raises(PadirError, match="holds files that `padir prepare` did not make"):
        prepare(Numbers(), tokenizer, tmp_path / "letters", overwrite=True, progress=False)
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["dear.txt"]
    (tmp_path / "empty").mkdir()
    assert prepare(Numbers(), tokenizer, tmp_path / "empty", progress=False).splits["train"].read == 300


@pytest.mark.parametrize("name", ["letter.txt", "letters/dear.txt", ".hidden"])
def test_overwriting_deletes_nothing_that_padir_did_not_make(tmp_path, tokenizer, name):
    before = prepare(Numbers(), tokenizer, tmp_path / "out", progress=False)
    (tmp_path / "out" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "out" / name).write_text("dear")
    with pytest.raises(PadirError, match=f"padir did not make, such as {name}: move them away"):
        prepare(Numbers(num_train=9), tokenizer, tmp_path / "out", overwrite=True, progress=False)
    assert (tmp_path / "out" / name).read_text() == "dear"
    assert prepare(Numbers(), tokenizer, tmp_path / "out", progress=False) == before  # kept, with the file


class Breaks(Numbers):
    """A source that fails after some pairs, as a lost disk or Ctrl-C would."""

    def pairs(self, split):
        yield from super().pairs(split)
        if split == "validation":
            raise KeyboardInterrupt


def test_what_a_killed_process_left_is_removed(tmp_path, tokenizer):
    gone, stay = beside(tmp_path / "out", "partial"), beside(tmp_path / "out.b", "partial")
    for folder in (gone, stay):
        folder.mkdir()
        (folder / "train").touch()
    for _ in range(2):  # a folder that is kept removes them, too
        prepare(Numbers(), tokenizer, tmp_path / "out", progress=False)
        assert sorted(tmp_path.iterdir()) == sorted([stay, tmp_path / "out"])
        gone.mkdir()


def test_a_failed_overwrite_leaves_the_old_folder(tmp_path, tokenizer):
    before = prepare(Numbers(), tokenizer, tmp_path / "out", progress=False)
    with pytest.raises(KeyboardInterrupt):
        prepare(Breaks(), tokenizer, tmp_path / "out", overwrite=True, progress=False)
    assert load_manifest(tmp_path / "out", verify=True) == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_every_pair_dropped(tmp_path, tokenizer):
    with pytest.raises(PadirError, match=r"pair was dropped \(1 empty source, 1 empty target\): give files whose"):
        prepare(Listed((("", "a"), ("b", " "))), tokenizer, tmp_path / "out", progress=False)
    with pytest.raises(PadirError, match=r"pair was dropped \(1 source too long\): raise the limits"):
        limits = LengthLimits(max_source_tokens=2)
        prepare(Listed((("eins zwei", "a"),)), tokenizer, tmp_path / "out", limits, progress=False)


def test_a_newline_in_a_sentence(tmp_path, tokenizer):
    with pytest.raises(PadirError, match="listed train, pair 1: a sentence must be one line"):
        prepare(Listed((("a\nb", "c"),)), tokenizer, tmp_path / "out", progress=False)


def test_a_changed_folder_is_noticed(tmp_path, tokenizer):
    out = tmp_path / "out"
    prepare(Numbers(), tokenizer, out, progress=False)
    shard = out / "train-00000-of-00001.arrayrecord"
    whole = shard.read_bytes()
    flip_a_bit(shard)
    load_manifest(out)  # the size is right
    with pytest.raises(PadirError, match="was changed or damaged .*set overwrite"):
        prepare(Numbers(), tokenizer, out, progress=False)
    prepare(Numbers(), tokenizer, out, overwrite=True, progress=False)
    assert shard.read_bytes() == whole


def test_a_foreign_vocabulary_is_noticed(tmp_path, tokenizer):
    prepare(Numbers(), tokenizer, tmp_path / "out", progress=False)
    path = tmp_path / "out" / "vocab.model"
    model = path.read_bytes()
    assert model.count("▁eins".encode()) == 1
    path.write_bytes(model.replace("▁eins".encode(), "▁eans".encode()))  # as many bytes
    with pytest.raises(PadirError, match="is not the vocabulary of the manifest"):
        load_tokenizer(tmp_path / "out")


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
    with pytest.raises(PadirError, match=message):
        load_manifest(tmp_path)
    with pytest.raises(PadirError, match="does not exist: run `padir prepare`"):
        load_manifest(tmp_path / "nowhere")


@pytest.fixture
def prepared(tmp_path, tokenizer):
    prepare(Numbers(), tokenizer, tmp_path / "out", progress=False)
    return tmp_path / "out"


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
    with pytest.raises(PadirError, match=message):
        load_manifest(prepared)


@pytest.mark.parametrize(
    "array",
    [np.array([[3, "x"], [None, {}]], object), np.zeros((3, 2), np.int32), np.zeros((300, 2)), np.zeros(300, np.int32)],
    ids=["objects", "too few", "floats", "one column"],
)
def test_lengths_that_are_none(prepared, array):
    np.save(prepared / "train.lengths.npy", array, allow_pickle=True)
    with pytest.raises(PadirError, match="lengths.npy cannot be read .*Object arrays|must have 300 pairs in train"):
        read_lengths(prepared, "train", 300)


def test_lengths_that_ask_for_all_memory(prepared):
    path = prepared / "train.lengths.npy"
    path.write_bytes(path.read_bytes().replace(b"(300, 2)", b"(3, 9999999999999)"))
    with pytest.raises(PadirError, match="lengths.npy cannot be read"):
        read_lengths(prepared, "train", 300)


def test_batches_are_of_few_pairs_or_few_characters():
    long = ("x" * (_MOST_CHARACTERS // 4), "y" * (_MOST_CHARACTERS // 4))
    assert [len(batch) for batch in _batches(iter([long] * 5))] == [2, 2, 1]
    assert [len(batch) for batch in _batches(iter([("a", "b")] * 2_500))] == [1024, 1024, 452]


class TestPlaceholders:
    PAIRS = (("eins 77 zwei", "one 77 two"), ("drei", "three"), ("vier 5", "four 6"))

    def test_equal_spans_of_training_become_sentinels(self, tmp_path, tokenizer):
        made = prepare(Listed(self.PAIRS, self.PAIRS), tokenizer, tmp_path / "out", placeholders=1.0, progress=False)
        marked = load_tokenizer(tmp_path / "out")
        (first, *others) = records(tmp_path / "out" / "train-00000-of-00001.arrayrecord")
        source, target = first[1 : first[0] + 1], first[first[0] + 1 :]
        (mark,) = [i for i in source if i >= marked.ids.end_regular]
        assert target.count(mark) == 1 and mark not in marked.ids.special
        assert max(map(max, others)) < marked.ids.end_regular
        assert made.splits["train"].placeholders == {"pairs": 1, "numbers": 1}
        assert made.splits["validation"].placeholders == {} and made.placeholders == 1.0
        assert read_text(tmp_path / "out", "validation")[0][0] == "eins 77 zwei"
        assert made.vocabulary.num_placeholders == 16 and "16 placeholders" in str(made.vocabulary)

    def test_the_text_of_a_pair_decides_about_it(self, tmp_path, tokenizer):
        pairs = [(f"eins {i}", f"one {i}") for i in range(400)]
        counts = [
            prepare(Listed(order), tokenizer, tmp_path / name, placeholders=0.25, progress=False)
            for name, order in (("a", pairs), ("b", pairs[::-1]))
        ]
        a, b = (made.splits["train"].placeholders for made in counts)
        assert a == b and 70 < a["pairs"] < 130

    @pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
    def test_a_wrong_share_is_refused(self, tmp_path, tokenizer, share):
        with pytest.raises(PadirError, match=r"placeholders must be in \[0, 1\]"):
            prepare(Listed(self.PAIRS), tokenizer, tmp_path / "out", placeholders=share)

    def test_another_share_is_another_folder(self, tmp_path, tokenizer):
        prepare(Listed(self.PAIRS), tokenizer, tmp_path / "out", placeholders=0.5, progress=False)
        assert prepare(Listed(self.PAIRS), tokenizer, tmp_path / "out", placeholders=0.5, progress=False)
        with pytest.raises(PadirError, match="was prepared from other text"):
            prepare(Listed(self.PAIRS), tokenizer, tmp_path / "out", progress=False)
