"""The WMT sets of TFDS as sources and Tasks, without a download: TFDS's own mock, and small sets in TFDS's format.

The sets are built by TFDS's own WMT builders, which are given the examples that a download would hold.
"""

import importlib.util
import itertools
import shutil

import pytest
from support import wmt_files
from support.refusals import refuses
from support.small_corpus import Numbers

from padir.cli import main
from padir.data.recipes import PARTS, RECIPES, Recipe
from padir.data.sources import SPLITS, Source
from padir.interop import seqio_tasks as tasks
from padir.interop.seqio_tasks import TFDS_SETS, get_source

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("seqio") is None, reason="seqio is not installed: pip install 'padir[data]'"
    ),
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's and seqio's own imports warn
]

AWKWARD = (
    ("erste\nzweite Zeile", "first\nsecond line"),
    ("漢字 ü \u2028 </s>", "<extra_id_0> a\tb"),
    ("  zwei  eins ", "&amp; not undone"),
)


def corpus(split):
    """The pairs of a split, source and target: numbers in words, and some text that is hard to keep."""
    return [*Numbers(num_train=300).pairs("train" if split == "train" else "validation"), *AWKWARD]


def expected(split):
    return sorted((s.replace("\n", " "), t.replace("\n", " ")) for s, t in corpus(split))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A TFDS folder with all three sets."""
    import tensorflow_datasets as tfds

    folder = tmp_path_factory.mktemp("tfds")
    for dataset in {dataset for dataset, _, _ in TFDS_SETS.values()}:
        first, second = dataset.partition("/")[2].split("-")
        builder = tfds.builder(dataset, data_dir=folder)

        def examples(split, first=first, second=second):
            for number, (source, target) in enumerate(corpus(split)):
                yield number, {first: source, second: target}

        # In place of downloading; TFDS calls both with arguments that are of no use here.
        builder._split_generators = lambda *_, examples=examples: {split: examples(split) for split in SPLITS}
        builder.download_and_prepare()
    return folder


@pytest.mark.parametrize("name", TFDS_SETS)
def test_a_set_is_a_source(name, built):
    source = get_source(name, built)
    dataset, source_language, target_language = TFDS_SETS[name]
    assert isinstance(source, Source) and source.splits == SPLITS
    assert name == f"{dataset.partition('_')[0]}_{source.source_language}_{source.target_language}"
    assert {source_language, target_language} == set(dataset.partition("/")[2].split("-"))
    turned = target_language != "en"
    for split in SPLITS:
        pairs = list(source.pairs(split))
        assert pairs == list(source.pairs(split))  # the same order each time
        assert sorted(pair[::-1] if turned else pair for pair in pairs) == expected(split)


def test_a_task_gives_the_ids_of_the_tokenizer(tokenizer, built, vocab_path):
    import seqio

    name = "wmt17_en_zh"
    assert set(TFDS_SETS) <= set(tasks.register(vocab_path, built))
    task = seqio.get_mixture_or_task(name)
    assert task.num_input_examples("train") == len(corpus("train"))
    given = list(get_source(name, built).pairs("validation"))
    examples = list(task.get_dataset(split="validation", shuffle=False).as_numpy_iterator())
    for example, pair in zip(examples, given, strict=True):
        for key, text in zip(("inputs", "targets"), pair, strict=True):
            assert example[f"{key}_pretokenized"].decode() == text
            if "<extra_id_0>" not in text:  # a sentinel to seqio alone
                assert example[key].tolist() == [*tokenizer.encode(tokenizer.normalised(text).text), 1]


def test_a_set_that_is_not_built_names_the_command(vocab_path, tmp_path, capsys):
    import seqio

    command = f"tfds build wmt17_translate/zh-en --data_dir {tmp_path}"
    source = get_source("wmt17_en_zh", tmp_path)
    refuses(lambda: [*source.pairs("train")], f"wmt17_translate/zh-en is not in {tmp_path}: run `{command}`")
    tasks.register(vocab_path, tmp_path)
    task, lengths = seqio.get_mixture_or_task("wmt17_en_zh"), {"inputs": 9, "targets": 9}
    refuses(task.get_dataset, "wmt17_translate/zh-en is not in ... `tfds build", lengths, split="train")
    assert get_source("wmt14_de_en").build_command == "tfds build wmt14_translate/de-en"
    arguments = ["vocab", "--task", "wmt17_en_zh", "--data_dir", str(tmp_path), "--output", str(tmp_path / "v.model")]
    assert main(arguments) == 2
    assert f"run `{command}`" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_says_how_to_build_it_anew(built, tmp_path):
    shutil.copytree(built, tmp_path / "tfds")
    (file,) = (tmp_path / "tfds/wmt16_translate/ro-en").glob("*/*-train.tfrecord*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    source = get_source("wmt16_ro_en", tmp_path / "tfds")
    refuses(lambda: [*source.pairs("train")], "wmt16_ro_en train: TFDS cannot read ... `tfds build ... --overwrite`")


def test_wrong_names(built):
    source = get_source("wmt14_de_en", built)
    refuses(source.pairs, "no split 'dev': use one of train, validation, test", "dev")
    refuses(get_source, "'wmt14': known are toy_de_en, ... wmt17_en_zh", "wmt14")


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_give_the_pairs_of_tfds_itself(name, tmp_path, monkeypatch):
    """TFDS's own parsers read the files that its own archives would be unpacked to."""
    import tensorflow_datasets as tfds
    from tensorflow_datasets.translate.wmt import DATASET_MAP

    year = name.split("_")[0]
    wmt_files.write(monkeypatch, tmp_path / "packed", year)
    wmt_files.write(monkeypatch, tmp_path / "unpacked", year, packed=False)
    source = Recipe(name, tmp_path / "packed")
    languages = (source.source_language, source.target_language)
    (foreign,) = {*languages} - {"en"}
    builder = tfds.builder(TFDS_SETS[name][0], data_dir=tmp_path)
    for split in SPLITS:
        parts = PARTS[year][split]
        assert {part.name for part in parts} == {*builder.subsets[split]}
        for part in parts:
            (address,) = DATASET_MAP[part.name].get_url(foreign)
            assert address.rpartition("/")[2] == part.file
        for corpus, part in zip(source.corpora(split), parts, strict=True):
            folder = tmp_path / "unpacked" / part.file
            place = folder / part.texts[0] if len(part.texts) == 1 else folder
            examples = builder._generate_examples([part.name], {part.name: [str(place)]})
            assert list(corpus.pairs) == [tuple(example[each] for each in languages) for _, example in examples]


def test_pairs_are_read_one_by_one():
    """The split is larger than any memory."""
    import tensorflow_datasets as tfds

    with tfds.testing.mock_data(num_examples=10**12):
        assert len(list(itertools.islice(get_source("wmt17_zh_en").pairs("train"), 3))) == 3
