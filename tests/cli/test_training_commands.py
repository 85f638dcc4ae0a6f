"""`padir distill`, `padir train` and `padir average`, and training options that are refused before any work."""

import json
import shutil

import pytest
from support.commands import TINY_GIN, refused, results, run


def test_distill_writes_a_teachers_translations(built, short, tmp_path, capsys):
    command = ["distill", "--model", short, "--data", built / "data", "--output", tmp_path / "distilled"]
    found, out = results(capsys, tmp_path / "x.json", *command, "--num_steps", 1, "--batch_size", 64)
    assert "train" in out and "300" in out and "the teacher's BLEU on the validation split: " in out
    assert found["distilled"]["decoding"]["num_steps"] == 1


@pytest.mark.slow
def test_train_average_and_evaluate(built, tmp_path, capsys):
    path = tmp_path / "results.json"
    gin = [*TINY_GIN, "--gin.Intervals.checkpoint=1", "--gin.Intervals.evaluate=0"]
    gin += ["--gin.train.averaging=@Averaging()", "--gin.Averaging.kind=ema"]
    command = ["train", "--data", built / "data", built / "data", "--weights", 1, 0.5, *gin]
    status, out, errors = run(capsys, *command, "--model_dir", tmp_path / "model", "--json", path)
    assert status == 0 and out == "" and "train.num_steps = 2" in errors, errors
    assert json.loads(path.read_text())["loss"] > 0
    text = (tmp_path / "model" / "config.gin").read_text()
    assert "Averaging.kind = 'ema'" in text and "train.num_steps = 2" in text
    model = json.loads((tmp_path / "model" / "model.json").read_text())
    assert model["weights"] == {"kind": "ema", "steps": [2], "decay": 0.999}

    split = ["--split", "validation"]
    for words in (["translate", "eins"], ["score", "--source", built / "train.de", "--target", built / "train.en"]):
        status, _, errors = run(capsys, *words, "--model", tmp_path / "model", "--step", 1, "--num_steps", 1)
        assert status == 0 and "the checkpoint of step 1 is used" in errors, errors
    assert "has no checkpoint of step 7: it has those of 1, 2" in refused(
        capsys, "evaluate", "--model", tmp_path / "model", "--step", 7, "--data", built / "data", *split
    )

    command = ["average", "--checkpoints", tmp_path / "model", "--last", 2, "--output", tmp_path / "mean", "--decoding"]
    assert "no decoding option 'top_j'" in refused(capsys, *command, "top_j=3")
    assert "--decoding must be of words NAME=VALUE, got 'top_k'" in refused(capsys, *command, "top_k")
    command += ["top_k=3", "num_steps=2"]
    found, _ = results(capsys, path, *command)
    assert found == {"kind": "last", "steps": [1, 2], "decay": None}

    command = ["evaluate", "--model", tmp_path / "mean", "--data", built / "data", "--split", "validation"]
    rows, out = results(capsys, path, *command, "--num_steps", 1, "--hypotheses", tmp_path / "out.txt")
    assert "20 sentences" in out and "mean: mean of the last 2 checkpoints, steps 1, 2" in out
    assert [row["num_steps"] for row in rows] == [1] and rows[0]["scores"]["passes"]["value"] == 1.0
    assert rows[0]["scores"]["hypotheses"]["value"] > 1.5, "the model's own top_k"
    assert (tmp_path / "out.txt").read_text().count("\n") == 20


def test_train_refuses_a_vocabulary_that_has_changed(built, tmp_path, capsys):
    data = shutil.copytree(built / "data", tmp_path / "data")
    content = bytearray((data / "vocab.model").read_bytes())
    content[content.index(b"sieben")] ^= 1
    (data / "vocab.model").write_bytes(content)
    errors = refused(capsys, "train", "--data", data, "--model_dir", tmp_path / "model", "--gin.train.num_steps=1")
    assert "vocab.model was changed or damaged (its sha256 differs)" in errors
    assert not (tmp_path / "model").exists()


def test_train_refuses_missing_folders(built, capsys):
    assert "no data: give --data DIR, or --gin.DATASET=DIR" in refused(capsys, "train")
    assert "no model_dir" in refused(capsys, "train", "--data", built / "data")
    command = ["train", "--data", built / "data", built / "data", "--weights", 1, "--model_dir", built / "never"]
    assert "2 folders need as many weights, got 1" in refused(capsys, *command, "--yes")


def test_train_wants_a_configuration_and_no_num_steps(built, tmp_path, capsys):
    command = ["train", "--data", built / "data", "--model_dir", tmp_path / "model"]
    for given in ([], [f"--gin.MODEL_DIR={tmp_path}/other"]):
        assert "there is no configuration: give one, such as --gin_file=" in refused(capsys, *command, *given)
    errors = refused(capsys, *command, *TINY_GIN, "--num_steps", 1_000)
    assert "give --gin.train.num_steps=N for the former, --gin.Decoding.num_steps=N for the latter" in errors
    assert not (tmp_path / "model").exists()


def test_the_weights_of_a_gin_file_belong_to_its_own_folders(built, tmp_path, capsys):
    (tmp_path / "two.gin").write_text("DATASET = ('a', 'b')\nMixture.weights = (1.0, 2.0)\n")
    command = ["train", "--gin_file", tmp_path / "two.gin", *TINY_GIN, "--model_dir", tmp_path / "model"]
    status, out, errors = run(capsys, *command, "--data", built / "data", "--print_config")
    assert status == 0 and "Mixture" not in errors, errors
    assert "train.num_steps = 2" in out and "ModelConfig.width = 16" in out and not (tmp_path / "model").exists()
    assert "2 folders need as many weights" not in errors
    two = ["--data", built / "data", built / "data", built / "data"]
    assert "3 folders need as many weights, got 2" in refused(capsys, *command, *two)


def test_train_checks_its_validation_before_any_work(built, tmp_path, capsys):
    command = ["train", "--data", built / "data", "--model_dir", tmp_path / "model", *TINY_GIN]
    assert "rejecter needs a rejecter head" in refused(capsys, *command, "--strategy", "rejecter")
    assert "--beam applies only to autoregressive models" in refused(capsys, *command, "--beam", 2)
    assert "--gin.Mask.rate has no effect" in refused(capsys, *command, "--gin.Mask.rate=0.5")
    gin = ["--gin.ModelConfig.causal=True", "--gin.train.objective=@TeacherForcing()"]
    command = [word for word in command if "stage_weights" not in str(word)]
    assert "--draws applies only to models that refine drafts" in refused(capsys, *command, *gin, "--draws", 1)
    assert not (tmp_path / "model" / "checkpoints").exists()
