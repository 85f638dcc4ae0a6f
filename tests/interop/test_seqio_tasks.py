import importlib.util
import itertools
import sys

import pytest
from support.odd_text import odd_lines
from support.refusals import refuses
from support.small_corpus import Listed, Numbers

from padir.data.sources import SOURCES
from padir.interop import seqio_tasks as tasks

needs_seqio = pytest.mark.skipif(
    importlib.util.find_spec("seqio") is None, reason="seqio is not installed: pip install 'padir[data]'"
)
# TensorFlow's and seqio's own imports warn.
pytestmark = pytest.mark.filterwarnings("ignore")


def test_without_seqio_the_extra_is_named(vocab_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "seqio", None)
    refuses(tasks.register, "need the data extra ... pip install 'padir[data]'", vocab_path)


@needs_seqio
def test_every_source_is_a_task(vocab_path, tmp_path):
    import seqio

    for _ in range(2):  # again replaces
        assert tasks.register(vocab_path, tmp_path) == (*SOURCES, *tasks.TFDS_SETS)
    assert {*SOURCES, *tasks.TFDS_SETS} <= set(seqio.TaskRegistry.names())
    toy = seqio.get_mixture_or_task("toy_de_en")
    example = next(iter(toy.get_dataset(split="test", shuffle=False).as_numpy_iterator()))
    assert example["inputs"][-1] == example["targets"][-1] == 1
    with pytest.raises(Exception, match="github.com/multi30k/dataset"):  # TensorFlow wraps the generator's error
        next(iter(seqio.get_mixture_or_task("multi30k_de_en").get_dataset(split="train", shuffle=False)))


@needs_seqio
def test_ids_are_those_of_the_tokenizer(tokenizer, vocab_path):
    import seqio

    awkward = (("  zwei  eins ", "a\tb"), ("", "x"), ("漢字 ü", "<0x41>"))
    odd = zip(odd_lines(2_000), odd_lines(2_000, seed=1), strict=True)
    source = Listed((*itertools.islice(Numbers().pairs("train"), 20), *awkward, *odd))
    tasks.register_source("listed", lambda: source, vocab_path, splits=source.splits)
    task = seqio.get_mixture_or_task("listed")
    examples = list(task.get_dataset(split="train", shuffle=False).as_numpy_iterator())
    assert len(examples) == 2_023
    for example, (source_text, target_text) in zip(examples, source.train, strict=True):
        assert example["inputs"].tolist() == [*tokenizer.encode(tokenizer.normalised(source_text).text), 1]
        assert example["targets"].tolist() == [*tokenizer.encode(tokenizer.normalised(target_text).text), 1]
        assert example["targets_pretokenized"].decode() == target_text
    assert task.output_features["inputs"].vocabulary.vocab_size == tokenizer.ids.vocab_size


@needs_seqio
def test_the_task_for_training_leaves_out_long_pairs(vocab_path, tokenizer):
    """The sides are cut one by one in the other Task: half of a sentence would be trained on a whole translation."""
    import seqio

    source = Listed((*itertools.islice(Numbers().pairs("train"), 20), ("eins " * 9, "one"), ("zwei", "two " * 9)))
    tasks.register_source("listed", lambda: source, vocab_path, splits=source.splits)
    longest = {"inputs": 9, "targets": 9}

    def texts(name):
        dataset = seqio.get_mixture_or_task(name).get_dataset(longest, split="train", shuffle=False)
        examples = list(dataset.as_numpy_iterator())
        assert all(example[side].size <= 9 and example[side][-1] == 1 for example in examples for side in longest)
        return [example["inputs_pretokenized"].decode() for example in examples]

    whole = texts("listed")
    assert len(whole) == 22
    fitting = [pair[0] for pair in source.train if all(len(tokenizer.encode(text)) < 9 for text in pair)]
    assert texts("listed_fitting") == fitting and 0 < len(fitting) <= 20
    exact = {side: len(tokenizer.encode(text)) + 1 for side, text in zip(longest, source.train[0], strict=True)}
    first = seqio.get_mixture_or_task("listed_fitting").get_dataset(exact, split="train", shuffle=False)
    assert next(iter(first.as_numpy_iterator()))["inputs_pretokenized"].decode() == source.train[0][0], "EOS fits, too"


@needs_seqio
def test_a_prepared_folder_trains_on_its_records(tokenizer, tmp_path, monkeypatch):
    import seqio

    from padir.data.prepare import prepare
    from padir.interop import prepared_tasks
    from padir.interop.prepared_tasks import register_prepared

    monkeypatch.setattr(prepared_tasks, "_AT_ONCE", 64)
    folder, source = tmp_path / "numbers-1", Numbers()
    prepare(source, tokenizer, folder, progress=False)
    assert register_prepared(folder) == "numbers_1"
    task = seqio.get_mixture_or_task("numbers_1_fitting")
    longest = {"inputs": 8, "targets": 9}

    def ids(dataset):
        return [tuple(tuple(each[side].tolist()) for side in longest) for each in dataset.as_numpy_iterator()]

    for split in source.splits:
        made = [tuple((*tokenizer.encode(text), 1) for text in pair) for pair in source.pairs(split)]
        fitting = [pair for pair in made if len(pair[0]) <= 8 and len(pair[1]) <= 9]
        assert ids(task.get_dataset(longest, split, shuffle=False)) == fitting and fitting

    records = {seed: ids(task.source.get_dataset("train", shuffle=True, seed=seed).repeat(2)) for seed in (3, 4)}
    first, second = records[3][:300], records[3][300:]
    assert sorted(first) == sorted(second) == sorted(ids(task.source.get_dataset("train", shuffle=False)))
    assert first != second and first != records[4][:300]
    assert ids(task.source.get_dataset("train", shuffle=True, seed=3)) == first
    shards = [task.source.get_dataset("train", shuffle=True).shard(2, each) for each in range(2)]  # those of two hosts
    assert sorted(ids(shards[0]) + ids(shards[1])) == sorted(first)

    text = seqio.get_mixture_or_task("numbers_1").get_dataset(None, "validation", shuffle=False).as_numpy_iterator()
    assert [each["targets_pretokenized"].decode() for each in text] == [pair[1] for pair in source.pairs("validation")]


def test_a_prepared_folder_that_the_model_does_not_fit_is_refused(tokenizer, tmp_path):
    """Before seqio is needed."""
    from padir.data.prepare import prepare
    from padir.interop.prepared_tasks import register_prepared

    prepare(Numbers(), tokenizer, tmp_path / "plain", progress=False)
    refused = refuses(register_prepared, "LANGUAGES must be de-en ... plain, got 'en-de'", tmp_path / "plain", "en-de")
    assert refused.remedy.startswith('give --gin.LANGUAGES=\\"de-en\\"')
    prepare(Numbers(), tokenizer, tmp_path / "marked", placeholders=0.5, progress=False)
    refuses(register_prepared, "placeholders, which T5X cannot train", tmp_path / "marked", "de-en")


@needs_seqio
def test_training_on_a_prepared_folder_resumes_at_its_place(tokenizer, tmp_path, monkeypatch):
    """Within the second of three passes, in the order of the seed, through seqio's own shuffling."""
    import seqio
    import tensorflow as tf

    from padir.data.prepare import prepare
    from padir.interop import prepared_tasks
    from padir.interop.prepared_tasks import register_prepared

    monkeypatch.setattr(prepared_tasks, "_AT_ONCE", 64)
    prepare(Numbers(), tokenizer, tmp_path / "resumed", progress=False)
    task = seqio.get_mixture_or_task(f"{register_prepared(tmp_path / 'resumed')}_fitting")

    def started():
        options = {"shuffle": True, "shuffle_buffer_size": 16, "seed": 3, "num_epochs": 3}
        return iter(task.get_dataset({"inputs": 20, "targets": 20}, "train", **options))

    def ids(examples):
        return [tuple(tuple(each[side].numpy().tolist()) for side in ("inputs", "targets")) for each in examples]

    first = started()
    begun = ids(itertools.islice(first, 400))
    saved = tf.train.Checkpoint(ds=first).write(str(tmp_path / "place"))
    rest = ids(first)
    resumed = started()
    tf.train.Checkpoint(ds=resumed).read(saved).assert_consumed()
    assert ids(resumed) == rest and len(rest) == 500
    in_order = task.get_dataset({"inputs": 20, "targets": 20}, "train", shuffle=False)
    assert sorted(begun + rest) == sorted(ids(in_order) * 3)


@needs_seqio
def test_a_missing_vocabulary(tmp_path):
    refuses(tasks.register, "cannot read the vocabulary", tmp_path / "nowhere.model")
