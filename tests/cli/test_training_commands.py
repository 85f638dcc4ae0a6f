"""`padir distill`, `padir train` and `padir average`, and training options that are refused before any work."""

import dataclasses
import json

import pytest
from support.commands import TINY_GIN, refused, results, run

from padir import Translator


def test_distill_writes_a_teachers_translations_with_its_own_options(built, short, tmp_path, capsys):
    own = Translator.load(short)
    card = dataclasses.replace(own.card, decoding={"num_steps": 1, "num_lengths": 2})
    Translator(own.params, card, own.tokenizer).save(tmp_path / "teacher")
    command = ["distill", "--model", tmp_path / "teacher", "--data", built / "data", "--output", tmp_path / "distilled"]
    found, out = results(capsys, tmp_path / "x.json", *command, "--num_lengths", 3, "--batch_size", 64)
    assert "train" in out and "300" in out and "the teacher's BLEU on the validation split: " in out
    decoding = found["distilled"]["decoding"]
    assert (decoding["num_steps"], decoding["num_lengths"]) == (1, 3)


@pytest.mark.slow
def test_train_average_and_evaluate(built, tmp_path, capsys):
    path = tmp_path / "results.json"
    gin = [*TINY_GIN, "--gin.Intervals.checkpoint=1", "--gin.Intervals.evaluate=0"]
    gin += ["--gin.train.averaging=@Averaging()", "--gin.Averaging.kind=ema"]
    command = ["train", "--data", built / "data", built / "data", *gin, "--gin.Mixture.weights=(1.0, 0.5)"]
    status, out, errors = run(capsys, *command, "--model_dir", tmp_path / "model", "--json", path)
    assert status == 0 and out == "" and "train.num_steps = 2" in errors, errors
    assert json.loads(path.read_text())["loss"] > 0
    text = (tmp_path / "model" / "config.gin").read_text()
    assert "Averaging.kind = 'ema'" in text and "train.num_steps = 2" in text
    model = json.loads((tmp_path / "model" / "model.json").read_text())
    assert model["weights"] == {"kind": "ema", "steps": [2], "decay": 0.999}

    split = ["--split", "validation"]
    status, _, errors = run(capsys, "translate", "eins", "--model", tmp_path / "model", "--step", 1, "--num_steps", 1)
    assert status == 0 and "the checkpoint of step 1 is used" in errors, errors
    assert "has no checkpoint of step 7: it has those of 1, 2" in refused(
        capsys, "evaluate", "--model", tmp_path / "model", "--step", 7, "--data", built / "data", *split
    )

    command = ["average", "--model_dir", tmp_path / "model", "--last", 2, "--output", tmp_path / "mean", "--decoding"]
    assert "no decoding option 'top_j'" in refused(capsys, *command, "top_j=3")
    assert "--decoding must be a list of NAME=VALUE, got 'num_lengths'" in refused(capsys, *command, "num_lengths")
    command += ["num_lengths=3", "num_steps=2"]
    found, _ = results(capsys, path, *command)
    assert found == {"kind": "last", "steps": [1, 2], "decay": None}

    command = ["evaluate", "--model", tmp_path / "mean", "--data", built / "data", "--split", "validation"]
    rows, out = results(capsys, path, *command, "--num_steps", 1, "--output", tmp_path / "out")
    assert "20 sentences" in out and "mean: mean of the last 2 checkpoints, steps 1, 2" in out
    assert [row["num_steps"] for row in rows] == [1] and rows[0]["scores"]["passes"]["value"] == 1.0
    assert rows[0]["scores"]["hypotheses"]["value"] > 1.5, "the model's own top_k"
    assert (tmp_path / "out.rows/01.txt").read_text().count("\n") == 20


def test_train_refuses_missing_folders(built, capsys):
    assert "no data: give --data DIR, or --gin.DATASET=DIR" in refused(capsys, "train", *TINY_GIN)
    assert "no model_dir" in refused(capsys, "train", *TINY_GIN, "--data", built / "data")
    command = ["train", "--data", built / "data", built / "data", "--model_dir", built / "never"]
    assert "2 folders need one weight each, got 1" in refused(capsys, *command, "--gin.Mixture.weights=(1.0,)")


def test_train_wants_a_configuration(built, tmp_path, capsys):
    command = ["train", "--data", built / "data", "--model_dir", tmp_path / "model"]
    for given in ([], [f"--gin.MODEL_DIR={tmp_path}/other"], ["--steps", 3]):
        assert "there is no configuration: name one, as in `padir train toy_cpu`" in refused(capsys, *command, *given)
    assert "there is no configuration 'toy_cpo': did you mean 'toy_cpu'?" in refused(capsys, *command, "toy_cpo")
    assert not (tmp_path / "model").exists()


def test_options_of_train_win_over_bindings_and_these_over_files(built, tmp_path, capsys):
    """Each option sets the parameter of its own; validation has a seed and a batch size of its own."""

    def printed(*words):
        where = ["--data", built / "data", "--model_dir", tmp_path / "model"]
        status, out, errors = run(capsys, "train", "toy_cpu", *where, *words, "--print_config")
        assert status == 0, errors
        return [line for line in out.splitlines() if " = " in line]

    file = printed()
    assert {"train.num_steps = 10000", "Cosine.warmup_steps = 200", "Batching.rows = 16"} <= {*file}
    bound = printed("--gin.train.num_steps=7", "--gin.train.seed=1", "--gin.Batching.rows=3")
    assert {"train.num_steps = 7", "train.seed = 1", "Batching.rows = 3"} <= {*bound}
    options = ["--steps", 9, "--seed", 2, "--rows", 4, "--learning_rate", 0.5, "--warmup", 6, "--dropout", 0.25]
    options += ["--start_from", "de_en", "--evaluate_every", 8]
    for words in (options, ["--gin.train.num_steps=7", "--gin.train.seed=1", *options, "--gin.Cosine.peak=0.1"]):
        changed = {*printed(*words)} - {*file}
        assert changed == {
            *("train.num_steps = 9", "train.seed = 2", "Batching.rows = 4", "Cosine.peak = 0.5"),
            *("Cosine.warmup_steps = 6", "ModelConfig.dropout_rate = 0.25", "Intervals.evaluate = 8"),
            "train.start_from = 'de_en'",
        }
    assert {*printed("--validate", "seed=3", "batch_size=2")} == {*file}


def test_the_weights_of_a_gin_file_belong_to_its_own_folders(built, tmp_path, capsys):
    (tmp_path / "two.gin").write_text("DATASET = ('a', 'b')\nMixture.weights = (1.0, 2.0)\n")
    command = ["train", "--gin_file", tmp_path / "two.gin", *TINY_GIN, "--model_dir", tmp_path / "model"]
    status, out, errors = run(capsys, *command, "--data", built / "data", "--print_config")
    assert status == 0 and "Mixture" not in errors, errors
    assert "train.num_steps = 2" in out and "ModelConfig.width = 16" in out and not (tmp_path / "model").exists()
    assert "2 folders need one weight each" not in errors
    two = ["--data", built / "data", built / "data", built / "data"]
    assert "3 folders need one weight each, got 2" in refused(capsys, *command, *two)


def test_validation_tries_all_lengths_of_a_class(built, tmp_path, capsys, monkeypatch):
    """As the trained model will by default: with one length of each class, half of all lengths are never tried."""
    options = []
    monkeypatch.setattr("padir.cli.making.validation_fn", lambda _, decoding: options.append(decoding))
    command = ["train", "--data", built / "data", "--model_dir", tmp_path / "model", *TINY_GIN, "--print_config"]
    for words in (
        ["--gin.ModelConfig.length_unit=2"],
        ["--gin.ModelConfig.length_unit=2", "--validate", "num_lengths=1"],
    ):
        status, _, errors = run(capsys, *command, *words)
        assert status == 0, errors
    assert [each.num_lengths for each in options] == [2, 1]


def test_train_checks_its_validation_before_any_work(built, tmp_path, capsys):
    command = ["train", "--data", built / "data", "--model_dir", tmp_path / "model", *TINY_GIN]
    for option, message in (
        ("strategy=rejecter", "rejecter needs a rejecter head"),
        ("beam=2", "beam applies only to the mode causal"),
        ("top_j=2", "there is no decoding option 'top_j'"),
        ("num_lengths", "--validate must be a list of NAME=VALUE, got 'num_lengths'"),
    ):
        assert message in refused(capsys, *command, "--validate", option)
    assert "Mask.rate has no effect" in refused(capsys, *command, "--gin.Mask.rate=0.5")
    gin = ["--gin.ModelConfig.causal=True", "--gin.train.objective=@Causal()"]
    command = [word for word in command if "stage_weights" not in str(word)]
    assert "num_lengths applies only to the mode refine" in refused(
        capsys, *command, *gin, "--validate", "num_lengths=2"
    )
    assert not (tmp_path / "model" / "checkpoints").exists()
