"""Distillation: a teacher whose translations are known; what is dropped; that a stop changes no byte."""

import contextlib
import dataclasses
import hashlib
import json
import shutil
import tracemalloc
import types
from pathlib import Path

import pytest
from support.refusals import refuses
from support.small_corpus import ENGLISH, GERMAN, Listed, Numbers
from support.tiny_model import TINY, prepared_numbers, random_model_dir

from padir import Translation, Translator
from padir.data import Batching, LengthLimits, load_manifest, read_text
from padir.data.loader import make_loader
from padir.data.prepare import prepare
from padir.decoding.fit import resolve
from padir.decoding.options import Decoding
from padir.decoding.ranker import MinimumBayesRisk, Rescore
from padir.jobs.distillation import RecordSources, Teacher, distill, to_json
from padir.refinement import MaskPredict, Mixed, Padir, Rejecter
from padir.storage.folders import Chunks, folder_lock
from padir.text.tokenizer import train

TRAIN = (
    ("eins zwei drei", "one"),
    ("vier", "four four"),
    ("", "dropped by prepare"),
    ("sechs sechs", "six"),
    ("null null null null", "zero"),
)
VALIDATION = (("eins zwei drei vier", "one two three four"),)
DECODING = Decoding(num_steps=2, batch_size=1)


class Dictionary(Translator):
    """A teacher that looks every word up; it remembers what it was asked, and stops where it is told to."""

    card = tokenizer = None  # of an instance, in place of its loaded model's

    def __init__(self, tokenizer, words=None, limit=99, stop_at=None, languages=("de", "en")):
        self.words = dict(zip(GERMAN, ENGLISH, strict=True)) | (words or {})
        self.tokenizer, self.limit, self.stop_at, self.calls = tokenizer, limit, stop_at, []
        source, target = languages
        self.card = types.SimpleNamespace(
            config=TINY,
            corruption=Mixed(),
            strategy=Padir(),
            source_language=source,
            target_language=target,
            task="words",
            weights="of step 3",
        )

    def resolved(self, decoding):
        return resolve(decoding, self.card.config, self.card.corruption, self.card.strategy)

    def translate(self, texts, decoding, *, target_lengths=None, truncate=False):
        assert truncate
        self.calls.append(list(texts))
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        return [
            Translation(" ".join(self.words[w] for w in t.split()).strip(), 0.0, 1, 1, truncated=len(t) > self.limit)
            for t in texts
        ]


@pytest.fixture
def data(tmp_path, tokenizer):
    prepare(Listed(TRAIN, VALIDATION), tokenizer, tmp_path / "data", LengthLimits(max_target_tokens=5), progress=False)
    return tmp_path / "data"


@pytest.fixture(scope="module")
def numbers(tmp_path_factory, tokenizer):
    """300 pairs."""
    folder = tmp_path_factory.mktemp("numbers") / "data"
    prepare(Numbers(), tokenizer, folder, progress=False)
    return folder


def teacher(tokenizer, **changes):
    return Teacher(Dictionary(tokenizer, **changes), "a" * 64)


def run(teacher, data, out, decoding=DECODING, **arguments):
    return distill(teacher, data, out, decoding, progress=False, **arguments)


def pairs(folder, tokenizer):
    """(source, target) of the training records, in order."""
    batches = make_loader(folder, Batching(1, 8, source_row_length=8, max_segments=1), seed=None, num_epochs=1)
    decode = tokenizer.decode
    return [(decode(batch["source_BS"][0].tolist()), decode(batch["target_BL"][0].tolist())) for batch in batches]


def sums(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_targets_are_the_teachers_and_all_else_stays(data, tmp_path, tokenizer):
    manifest = run(teacher(tokenizer), data, tmp_path / "out")
    assert pairs(tmp_path / "out", tokenizer) == [
        ("eins zwei drei", "one two three"),
        ("vier", "four"),
        ("sechs sechs", "six six"),
        ("null null null null", "zero zero zero zero"),
    ]
    assert load_manifest(tmp_path / "out", verify=True) == manifest
    before = load_manifest(data)
    assert manifest.splits["validation"] == before.splits["validation"]
    assert (
        read_text(tmp_path / "out", "validation")
        == read_text(data, "validation")
        == (["eins zwei drei vier"], ["one two three four"])
    )
    changed = {name for name in sums(data) if sums(data)[name] != sums(tmp_path / "out")[name]}
    assert changed == {
        "dropped-train.jsonl",  # line 3 of the text was dropped by prepare; of the records none is
        "manifest.json",
        "train-00000-of-00001.arrayrecord",
        "train.lengths.npy",
    }
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["data", "out"]


def test_the_manifest_says_how(data, tmp_path, tokenizer):
    decoding = Decoding(num_steps=3, strategy=MaskPredict(), num_lengths=2, seed=5)
    manifest = run(teacher(tokenizer), data, tmp_path / "out", decoding)
    distilled = manifest.distilled
    assert distilled["teacher"] == {
        "manifest": "a" * 64,
        "vocabulary": tokenizer.sha256,
        "task": "words",
        "weights": "of step 3",
    }
    assert distilled["prepared"] == sums(data)["manifest.json"]
    assert distilled["splits"] == ["train"]
    assert distilled["validation"]["bleu"] == pytest.approx(100.0)  # the dictionary is right about it
    assert distilled["validation"]["signature"].startswith("nrefs:1")
    how = distilled["decoding"]
    assert how["strategy"] == {"class": "MaskPredict", "schedule": "linear"}
    assert (how["num_steps"], how["seed"], how["num_lengths"]) == (3, 5, 2)
    assert how == json.loads(json.dumps(to_json(decoding)))


@pytest.mark.parametrize(("decoding", "mode"), [(Decoding(), "causal"), (Decoding(num_steps=2), "refine")])
def test_a_dual_teacher_refines_only_if_it_is_asked_to(data, tmp_path, tokenizer, decoding, mode):
    one = teacher(tokenizer)
    one.translator.card.config = dataclasses.replace(TINY, dual=True)
    assert run(one, data, tmp_path / "out", decoding).distilled["decoding"]["mode"] == mode


def test_what_the_teacher_did_badly_has_no_record(data, tmp_path, tokenizer):
    words = {"vier": "", "sechs": "six six six", "null": "zero"}
    manifest = run(teacher(tokenizer, words=words, limit=15), data, tmp_path / "out")
    split = manifest.splits["train"]
    assert pairs(tmp_path / "out", tokenizer) == [("eins zwei drei", "one two three")]
    assert (split.read, split.written) == (4, 1)
    assert split.dropped == {"empty target": 1, "source too long": 1, "target too long": 1}
    lines = (tmp_path / "out" / "dropped-train.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"line": 2, "reason": "empty target"},
        {"line": 3, "reason": "target too long"},  # 6 tokens and EOS, 5 are allowed
        {"line": 4, "reason": "source too long"},  # the teacher took 15 characters
    ]


def test_nothing_that_can_be_used(data, tmp_path, tokenizer):
    mute = teacher(tokenizer, words=dict.fromkeys(GERMAN, ""))
    refuses(run, "no translation can be used ({'empty target': 4})", mute, data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def straight(numbers, tmp_path_factory, tokenizer):
    """The checksums of a distillation that nothing stopped."""
    folder = tmp_path_factory.mktemp("straight") / "out"
    run(teacher(tokenizer), numbers, folder)
    return sums(folder)


def test_the_longest_come_first_and_bytes_stay_the_same(numbers, straight, tmp_path, tokenizer):
    one = teacher(tokenizer)
    run(one, numbers, tmp_path / "out")
    assert sums(tmp_path / "out") == straight
    longest = [max(len(text.split()) for text in texts) for texts in one.translator.calls[1:]]
    assert longest == sorted(longest, reverse=True) and longest[0] > longest[-1]


@pytest.mark.parametrize("stop_at", [1, 2, 5, 20], ids=["validation", "first chunk", "fourth", "last"])
def test_stopped_and_resumed_gives_the_same_bytes(numbers, straight, tmp_path, tokenizer, monkeypatch, stop_at):
    stopped = teacher(tokenizer, stop_at=stop_at)
    with pytest.raises(KeyboardInterrupt):
        run(stopped, numbers, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    resumed, counted = teacher(tokenizer), []  # sentences, and whether the rate of progress counts them
    bar = contextlib.nullcontext(lambda count, fresh=True: counted.append((count, fresh)))
    monkeypatch.setattr("padir.jobs.distillation.progress_bar", lambda *_, **__: bar)
    run(resumed, numbers, tmp_path / "out")
    # 300 sentences in chunks of 16 are 19 calls, and one for the validation split; none is made twice.
    assert len(resumed.translator.calls) == 20 - (stop_at - 1)
    earlier = sum(map(len, stopped.translator.calls[1:-1]))
    assert counted[0] == (earlier, False) and all(fresh for _, fresh in counted[1:])
    assert sum(count for count, _ in counted[1:]) == 300 - earlier
    assert sums(tmp_path / "out") == straight
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("content", ["[1,", "3", "[]"])
def test_a_damaged_chunk_is_named_before_anything_is_translated(numbers, tmp_path, tokenizer, content):
    with pytest.raises(KeyboardInterrupt):
        run(teacher(tokenizer, stop_at=4), numbers, tmp_path / "out")
    damaged = next((tmp_path / ".out.unfinished").glob("chunk_*.json"))
    damaged.write_text(content)
    resumed = teacher(tokenizer)
    refuses(run, f"{damaged.name} is damaged: remove it", resumed, numbers, tmp_path / "out")
    assert resumed.translator.calls == []


def test_chunks_and_folders_of_another_version(data, tmp_path, tokenizer, monkeypatch):
    run(teacher(tokenizer), data, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run(teacher(tokenizer, stop_at=2), data, tmp_path / "out")
    monkeypatch.setattr("padir.jobs.distillation.CHUNKS", "as another version cuts them")
    refuses(run, ".out.unfinished holds ... or version of padir: remove it", teacher(tokenizer), data, tmp_path / "out")
    refuses(run, "whole holds ... or version of padir: give another", teacher(tokenizer), data, tmp_path / "whole")


def test_two_at_once_are_refused(data, tmp_path, tokenizer):
    with folder_lock(tmp_path / ".out.unfinished", "distilled into"):
        refuses(run, "one process at a time, and process", teacher(tokenizer), data, tmp_path / "out")
    run(teacher(tokenizer), data, tmp_path / "out")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["data", "out"]


def test_unfinished_chunks_of_something_else(data, tmp_path, tokenizer):
    with pytest.raises(KeyboardInterrupt):
        run(teacher(tokenizer, stop_at=2), data, tmp_path / "out")
    other = dataclasses.replace(DECODING, seed=1)
    words = ".out.unfinished holds ... of another teacher ... : remove it"
    refuses(run, words, teacher(tokenizer), data, tmp_path / "out", other)
    manifest = run(teacher(tokenizer), data, tmp_path / "out", other, overwrite=True)
    assert manifest.distilled["decoding"]["seed"] == 1


def test_a_folder_of_the_same_is_kept_and_another_is_not_replaced(data, tmp_path, tokenizer):
    first = run(teacher(tokenizer), data, tmp_path / "out")
    again = teacher(tokenizer)
    assert run(again, data, tmp_path / "out") == first and again.translator.calls == []
    other = Teacher(again.translator, "b" * 64)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("dear")
    for one, folder, overwrite, words in (
        (other, "out", False, "out holds translations of another teacher ... set overwrite"),
        (again, "data", False, "data holds translations of another teacher"),
        (again, "letters", True, "holds files that padir did not make"),
    ):
        refuses(run, words, one, data, tmp_path / folder, overwrite=overwrite)
    second = run(other, data, tmp_path / "out", overwrite=True)
    assert second.distilled["teacher"]["manifest"] == "b" * 64


def test_a_whole_folder_of_the_same_is_kept_even_if_it_may_be_overwritten(data, tmp_path, tokenizer):
    first = run(teacher(tokenizer), data, tmp_path / "out")
    again = teacher(tokenizer)
    assert run(again, data, tmp_path / "out", overwrite=True) == first and again.translator.calls == []
    (tmp_path / "out" / "train.lengths.npy").write_bytes(b"damaged")
    refuses(run, "train.lengths.npy was changed or damaged", again, data, tmp_path / "out")
    assert run(again, data, tmp_path / "out", overwrite=True) == first and again.translator.calls != []
    assert load_manifest(tmp_path / "out", verify=True) == first


def test_chunks_that_outlived_their_folder_go_with_the_next_call(data, tmp_path, tokenizer, monkeypatch):
    """It was killed between giving the folder its name and removing the chunks."""
    remove = shutil.rmtree

    def killed(path, **arguments):
        if Path(path).name == ".out.unfinished":
            raise KeyboardInterrupt
        remove(path, **arguments)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        run(teacher(tokenizer), data, tmp_path / "out")
    monkeypatch.undo()
    assert (tmp_path / ".out.unfinished").exists()
    run(teacher(tokenizer), data, tmp_path / "out")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["data", "out"]


def test_chunks_of_something_else_beside_a_whole_folder_stay(data, tmp_path, tokenizer):
    run(teacher(tokenizer), data, tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        run(teacher(tokenizer, stop_at=2), data, tmp_path / "out", Decoding(seed=1), overwrite=True)
    run(teacher(tokenizer), data, tmp_path / "out")
    assert (tmp_path / ".out.unfinished").exists()


def test_a_decoding_that_is_refused_is_in_nobodys_way(data, tmp_path, tokenizer):
    judging = Decoding(strategy=Rejecter())
    refuses(run, "rejecter needs a rejecter head", teacher(tokenizer), data, tmp_path / "out", judging)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    run(teacher(tokenizer), data, tmp_path / "out", Decoding(strategy=Padir()))


def test_a_rescorer_is_known_by_its_directory_and_its_files(data, tmp_path, tokenizer):
    folder = random_model_dir(tmp_path / "causal", causal=True)
    decoding = Decoding(rerank=str(folder), length_normalization=0.5)
    first = run(teacher(tokenizer), data, tmp_path / "out", decoding)
    manifest = folder / "manifest.json"
    assert first.distilled["decoding"]["rerank"] == {
        "name": str(folder),
        "sha256": hashlib.sha256(manifest.read_bytes()).hexdigest(),
    }
    again = teacher(tokenizer)
    assert run(again, data, tmp_path / "out", decoding) == first and again.translator.calls == []
    manifest.write_text(manifest.read_text() + "\n")  # as if it were trained anew
    refuses(run, "holds translations of another teacher", again, data, tmp_path / "out", decoding)


def test_a_rule_of_ones_own_is_known_by_its_fields(data, tmp_path, tokenizer):
    for name, rule in {
        "mean": MinimumBayesRisk("bleu"),
        "rescored": Rescore(score_fn=_no_scores),
    }.items():
        made = run(teacher(tokenizer), data, tmp_path / name, Decoding(rerank=rule))
        kept = made.distilled["decoding"]["rerank"]
        assert kept["class"] == type(rule).__name__
        assert kept.get("utility", "bleu") == "bleu" and kept.get("score_fn", "_no_scores").endswith("_no_scores")


def _no_scores(sources, targets):
    return []


def test_teachers_that_cannot(data, tmp_path, tokenizer):
    prepare(Listed(TRAIN, splits=("validation",)), tokenizer, tmp_path / "bare", progress=False)
    for changes, folder, words in (
        ({"languages": ("en", "de")}, data, "the teacher translates en-de, but ... data is de-en"),
        ({}, tmp_path / "bare", "has no training split"),
    ):
        refuses(run, words, teacher(tokenizer, **changes), folder, tmp_path / "out")


def test_without_a_validation_split_there_is_no_bleu(tmp_path, tokenizer):
    prepare(Listed(TRAIN, splits=("train",)), tokenizer, tmp_path / "data", progress=False)
    assert run(teacher(tokenizer), tmp_path / "data", tmp_path / "out").distilled["validation"] is None


def test_a_model_directory_with_another_vocabulary_teaches(tmp_path, tokenizer):
    """Text changes hands: the teacher's ids mean nothing in the folder."""
    other = train(["eins zwei drei vier one two three four"] * 9, tmp_path / "other.model", size=278)
    prepare(Numbers(num_train=40), other, tmp_path / "data", LengthLimits(max_target_tokens=100), progress=False)
    model = random_model_dir(tmp_path / "teacher")
    one = Teacher.load(model)
    assert one.sha256 == hashlib.sha256((model / "manifest.json").read_bytes()).hexdigest()
    manifests = [run(one, tmp_path / "data", tmp_path / name, Decoding(num_steps=2)) for name in "ab"]
    assert manifests[0] == manifests[1] and sums(tmp_path / "a") == sums(tmp_path / "b")
    assert manifests[0].distilled["teacher"]["vocabulary"] != manifests[0].vocabulary.sha256
    split = manifests[0].splits["train"]
    assert split.read == 40 and split.written + sum(split.dropped.values()) == 40


def test_memory_holds_no_translations(tmp_path, tokenizer):
    """Of 900 more, of a kilobyte each, less than a third is in memory at any time."""
    words = {"null": "zero " * 200, "eins": "one " * 250}
    peaks = []
    for count in (50, 300, 1_200):  # the first imports what is imported late
        corpus = Listed(tuple(("null" if n % 2 else "eins", "one") for n in range(count)))
        data, out = tmp_path / f"data{count}", tmp_path / f"out{count}"
        prepare(corpus, tokenizer, data, progress=False)
        tracemalloc.start()
        manifest = run(teacher(tokenizer, words=words), data, out, Decoding(batch_size=4))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert manifest.splits["train"].written == count
    assert peaks[2] - peaks[1] < 300_000, peaks


def test_chunks_of_another_teacher_or_of_an_interrupted_removal_go(tmp_path):
    """Without inputs, they may be another teacher's."""
    chunks = Chunks.open(tmp_path / "chunks", {"teacher": "a"}, overwrite=False)
    chunks.once("0", lambda: ["by a"])
    assert Chunks.open(tmp_path / "chunks", {"teacher": "a"}, overwrite=False).read("0") == ["by a"]
    other = Chunks.open(tmp_path / "chunks", {"teacher": "b"}, overwrite=True)
    assert other.read("inputs") == {"teacher": "b"} and other.once("0", lambda: ["by b"]) == ["by b"]
    (tmp_path / "chunks" / "inputs.json").unlink()
    assert Chunks.open(tmp_path / "chunks", {"teacher": "b"}, overwrite=False).read("0") is None


def test_a_damaged_chunk_is_named(tmp_path):
    chunks = Chunks.open(tmp_path / "chunks", {}, overwrite=False)
    chunks.once("a", lambda: [1, 2])
    (tmp_path / "chunks" / "a.json").write_text("[1,")
    refuses(chunks.once, "a.json is damaged: remove it, and run the same command", "a", lambda: [3])


def test_records_of_a_stranger_that_are_no_records(tmp_path):
    data = prepared_numbers(tmp_path)
    manifest = load_manifest(data)
    (data / manifest.splits["train"].shards[0]).write_bytes(b"x" * 99)
    refuses(RecordSources, "the records of ... are damaged", data, manifest)
