"""BLEURT: the input of its graph, its scores, and refused checkpoints."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from support.refusals import refuses

from padir.metrics.bleurt import Bleurt, Pieces, read_config

CHECKPOINT = Path(__file__).parents[3] / "shared/data/bleurt_test_checkpoint"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "dog", "##s", "bark", "."]


def checkpoint(folder, **changes):
    """A folder with a vocabulary and a configuration, and no graph."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("".join(piece + "\n" for piece in VOCABULARY))
    config = {"name": "small", "vocab_file": "vocab.txt", "do_lower_case": True, "max_seq_length": 12} | changes
    (folder / "bleurt_config.json").write_text(json.dumps(config))
    return folder


class TestPairs:
    def test_reference_then_candidate_with_segments_and_padding(self, tmp_path):
        name, pieces = read_config(checkpoint(tmp_path))
        batch = pieces.batch(["The dogs bark.", "Dog"], ["dog", "."])
        assert name == "small"
        assert batch["input_ids"].tolist() == [
            [2, 4, 5, 6, 7, 8, 3, 5, 3, 0, 0, 0],
            [2, 5, 3, 8, 3, 0, 0, 0, 0, 0, 0, 0],
        ]
        assert batch["segment_ids"].tolist()[0] == [0] * 7 + [1, 1] + [0] * 3
        assert batch["input_mask"].sum(-1).tolist() == [9, 5]
        assert {array.dtype for array in batch.values()} == {np.dtype(np.int64)}

    def test_the_longer_side_is_cut_and_of_equals_the_candidate(self):
        pieces = Pieces(lambda text: [int(c) for c in text], cls=0, sep=9, max_length=8)
        assert pieces.pair("1234", "567")[0] == [0, 1, 2, 3, 9, 5, 6, 9]  # 4 + 3 -> 3 + 3 -> 3 + 2
        assert pieces.pair("123456", "78")[0] == [0, 1, 2, 3, 9, 7, 8, 9]
        assert pieces.pair("1", "234567")[0] == [0, 1, 9, 2, 3, 4, 5, 9]

    def test_sentencepiece_and_rows_no_longer_than_needed(self, tmp_path):
        folder = checkpoint(
            tmp_path, vocab_file=None, do_lower_case=None, sp_model="sent_piece", dynamic_seq_length=True
        )
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["the dog barks", "a dog", "the cat"] * 20),
            model_prefix=str(folder / "sent_piece"),
            vocab_size=30,
            hard_vocab_limit=False,
            control_symbols=["[CLS]", "[SEP]"],
            minloglevel=2,
        )
        _, pieces = read_config(folder)
        model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sent_piece.model"))
        ids, segments = pieces.pair("the dog", "a cat")
        assert ids[0] == model.piece_to_id("[CLS]") and ids.count(model.piece_to_id("[SEP]")) == 2
        middle = ids.index(model.piece_to_id("[SEP]"))
        assert model.decode(ids[1:middle]) == "the dog" and model.decode(ids[middle + 1 : -1]) == "a cat"
        assert segments == [0] * (middle + 1) + [1] * (len(ids) - middle - 1)
        assert pieces.batch(["the dog"], ["a cat"])["input_ids"].shape == (1, len(ids))

    def test_the_test_checkpoint(self):
        if not CHECKPOINT.is_dir():
            pytest.skip("the BLEURT test checkpoint is not here")
        name, pieces = read_config(CHECKPOINT)
        ids, _ = pieces.pair("An apple a day keeps the doctor away.", "An apple a day keeps doctors away.")
        lines = (CHECKPOINT / "vocab.txt").read_text().split("\n")
        said = " ".join(lines[i] for i in ids)
        assert (name, pieces.max_length) == ("dbleurt_tiny", 512)
        assert said == ("[CLS] an apple a day keeps the doctor away . [SEP] an apple a day keeps doctors away . [SEP]")


class TestScores:
    def test_batches_keep_the_order_and_the_mean_is_times_100(self, tmp_path):
        _, pieces = read_config(checkpoint(tmp_path))
        shapes = []

        def predict(batch):  # as good as the pair is long
            shapes.append(batch["input_ids"].shape)
            return batch["input_mask"].sum(-1).astype(np.float32) / 10

        bleurt = Bleurt("small", pieces, predict, batch_size=2)
        references = ["the dogs bark.", "dog", "the dog"]
        assert bleurt.scores(references, ["dog"] * 3) == pytest.approx([0.9, 0.5, 0.6])
        assert sorted(shapes) == [(1, 12), (2, 12)]
        score = bleurt(["dog"] * 3, references)
        assert score.value == pytest.approx(100 * (0.9 + 0.5 + 0.6) / 3)
        assert score.name == "bleurt" and "checkpoint:small" in score.signature
        refuses(bleurt, "got 1 hypotheses and 3 references", ["dog"], references)


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"name": None, "max_seq_length": None}, "must give name and max_seq_length"),
            ({"vocab_file": None}, "names neither a vocab_file nor an sp_model"),
            ({"vocab_file": None, "sp_model": "sent_piece"}, "cannot read ... sent_piece.model"),
        ],
    )
    def test_what_is_no_checkpoint(self, tmp_path, changes, words):
        refuses(read_config, "is no BLEURT checkpoint", tmp_path)
        refuses(read_config, words, checkpoint(tmp_path, **changes))

    def test_without_tensorflow_it_says_so(self, tmp_path, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "tensorflow", None)
        refuses(Bleurt.load, "needs TensorFlow: pip install 'padir[bleurt]'", checkpoint(tmp_path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed (extra bleurt)")
    if not CHECKPOINT.is_dir():
        pytest.skip("the BLEURT test checkpoint is not here")
    folder = tmp_path_factory.mktemp("bleurt") / "checkpoint"
    shutil.copytree(CHECKPOINT, folder, copy_function=shutil.copyfile)
    os.chmod(folder, 0o755)
    os.chmod(folder / "variables", 0o755)
    index = tf.train.load_checkpoint(str(CHECKPOINT / "variables" / "variables"))
    shapes, types = index.get_variable_to_shape_map(), index.get_variable_to_dtype_map()
    rng, names = np.random.RandomState(0), sorted(shapes)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "variables" / "variables"),
        tensor_names=names,
        shape_and_slices=[""] * len(names),
        tensors=[tf.cast(rng.normal(scale=0.1, size=shapes[name]), types[name]) for name in names],
    )
    return folder


@pytest.mark.filterwarnings("ignore")
class TestGraph:
    """The test checkpoint's own graph; its weights are not to be had, so it gets others of the same shapes."""

    def test_it_runs_and_reads_every_part_of_its_input(self, folder):
        bleurt = Bleurt.load(folder, batch_size=2)
        references = ["The dog is asleep.", "The dog is asleep.", "Two cats"]
        candidates = ["The dog is asleep.", "A cat sings.", "Two cats"]
        scores = bleurt.scores(references, candidates)
        assert np.isfinite(scores).all() and len({round(s, 6) for s in scores}) == 3
        for i in range(3):  # alone or in a batch
            assert bleurt.scores(references[i : i + 1], candidates[i : i + 1]) == pytest.approx([scores[i]], abs=1e-5)
        assert bleurt(candidates, references).value == pytest.approx(100 * np.mean(scores))

    def test_without_weights(self, folder):
        refuses(Bleurt.load, "has no weights", CHECKPOINT)
