"""`padir benchmark`: rows of trained models, of random weights, and of training steps."""

import json
import types

import pytest
from support.commands import TINY_GIN, corpus, refused, results, run


@pytest.mark.slow
def test_trained_models_are_timed_on_a_test_set(built, short, tmp_path, capsys):
    command = f"benchmark --model tiny={short} {corpus(built, 'validation')} --split validation --num_steps 1 2"
    command += f" --set sentences=4 repeats=1 --batch_size 1 4 --output {tmp_path}/x"
    status, out, errors = run(capsys, command)
    assert status == 0 and "milliseconds of each stage" in out and "sentences/s" in errors
    found = json.loads((tmp_path / "x.json").read_text())
    rows = found["rows"]
    assert [(row["batch_size"], row["num_steps"]) for row in rows] == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert rows[0]["scores"]["ratio"]["value"] == rows[2]["scores"]["ratio"]["value"] == 1
    assert all(row["scores"]["bleu"]["signature"].startswith("nrefs:1") for row in rows)
    assert found["environment"]["versions"]["jax"] and found["environment"]["cores"]
    assert "tiny" in (tmp_path / "x.md").read_text() and (tmp_path / "x.png").stat().st_size > 0


@pytest.mark.slow
def test_random_weights_write_numbers_of_a_given_length(tmp_path, capsys):
    sizes = "width=16 heads=2 head_dim=8 mlp=32 encoder_layers=1 decoder_layers=1".split()
    small = "".join(f"ModelConfig.{size}\n" for size in sizes)
    (tmp_path / "small.gin").write_text(small)
    (tmp_path / "causal.gin").write_text(f"{small}ModelConfig.causal=True\n")
    command = f"benchmark --model ar={tmp_path}/causal.gin padir={tmp_path}/small.gin --batch_size 2 --beam 1"
    command += (
        " --set vocab_size=400 tokens=7 sentences=2 repeats=1 --precision int8 --num_lengths 2 --mode refine causal"
    )
    found, _ = results(capsys, tmp_path / "x.json", command)
    rows = [(row["model"], row["num_drafts"], row["scores"]["tokens"]["value"]) for row in found["rows"]]
    assert rows == [("ar, int8", 1, 7), ("padir, int8", 2, 7)]
    memory = [row["scores"].get("temporaries_mb", {"value": None})["value"] for row in found["rows"]]
    assert memory[0] is None and memory[1] > 0


def test_decoding_options_of_gin_are_refused_for_random_weights(tmp_path, capsys):
    (tmp_path / "small.gin").write_text("ModelConfig.width=16\n")
    (tmp_path / "bound.gin").write_text("Decoding.num_steps=2\n")
    words = "--gin. does not reach the files of --model"
    assert words in refused(capsys, f"benchmark --model a={tmp_path}/small.gin --gin.Decoding.num_steps=2")
    assert "bound.gin binds Decoding.num_steps" in refused(capsys, f"benchmark --model a={tmp_path}/bound.gin")


def test_training_steps_are_timed(built, tmp_path, capsys, monkeypatch):
    """`training_speed` has tests of its own: here it gets the configuration, and its numbers are shown."""
    calls = []

    def measure(folders, config, **settings):
        calls.append((folders, config, settings))
        return types.SimpleNamespace(metrics={"step_ms": 12345.6, "temporary_mb": None}, step_seconds=(1.0,))

    monkeypatch.setattr("padir.measuring.benchmark.training_speed.measure", measure)
    gin = TINY_GIN.replace("--gin.train.num_steps=2", "")
    status, out, _ = run(capsys, f"benchmark --steps 3 --data {built}/data --output {tmp_path}/x {gin}")
    assert status == 0 and "12,346" in out and "not known" in out
    assert json.loads((tmp_path / "x.json").read_text())["figures"]["temporary_mb"] is None
    ((folders, config, settings),) = calls
    assert folders == (str(built / "data"),) and settings["steps"] == 3 and config.model.width == 16
    assert config.objective.stage_weights == ("all",) and config.batching.row_length == 16
    assert run(capsys, f"benchmark --steps 3 --data {tmp_path}/absent {gin}")[0] == 0
    assert calls.pop()[0] == (f"{tmp_path}/absent",)  # `measure` refuses it
    absent = f"--gin.DATASET='{tmp_path}/absent' --json {tmp_path}/y.json"
    status, _, errors = run(capsys, f"benchmark --steps 3 {absent} {gin}")
    assert status == 0 and f"{tmp_path}/absent of the configuration is not here: random batches" in errors
    assert json.loads((tmp_path / "y.json").read_text())["data"] == "random"
    folders, _, settings = calls.pop()
    assert folders == () and settings["num_embeddings"] == 32_100


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--model a=b.gin {model}", "give either gin files, or models"),
        ("--steps 3", "--steps needs --gin_file"),
        ("--steps 3 --gin_file configs/run/toy_cpu.gin --model {model}", "does not read --model: leave one"),
        ("--steps 3 --gin_file configs/run/toy_cpu.gin {test}", "does not read --validation: leave one"),
        ("--steps 3 --gin_file configs/run/toy_cpu.gin --beam 2", "does not read --beam: leave one"),
        ("--steps 3 --gin_file configs/run/toy_cpu.gin --languages de-en", "does not read --languages: leave one"),
        ("--steps 3 --gin_file configs/run/toy_cpu.gin --step 3", "does not read --step: leave one"),
        ("--steps 3 --gin_file configs/run/toy_cpu.gin --set tokens=5", "does not read --set tokens: leave one"),
        ("--model {model} {test} --set tokens=5", "a trained model does not read --set tokens"),
        ("--model {model} {test}", "needs 64 sentences, got 20 with text: lower batch_size and sentences"),
        (
            "--model {model} {test} --set sentences=4 --batch_size 4 --set repeats=0",
            "repeats must be at least 1, got 0",
        ),
        ("--model {model} {test} --set sentences=3 --batch_size 1 0", "--batch_size must be at least 1, got 0"),
        ("--model {model} {test} --set sentences=0 --batch_size 8", "sentences must be at least 1, got 0"),
    ],
)
def test_wrong_options_are_refused(built, short, capsys, options, words):
    test = f"{corpus(built, 'validation')} --split validation"
    assert words in refused(capsys, f"benchmark {options.format(model=short, test=test)}")
