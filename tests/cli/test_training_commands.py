"""`padir distill`, `padir train` and `padir average`, and training options that are refused before any work."""

import dataclasses
import json

import pytest
from support.commands import TINY_GIN, refused, results, run

from padir import Translator
from padir.data.prepared import load_manifest


def test_distill_writes_a_teachers_translations_with_its_own_options(built, short, tmp_path, capsys):
    own = Translator.load(short)
    card = dataclasses.replace(own.card, decoding={"num_steps": 1, "num_lengths": 2})
    Translator(own.params, card, own.tokenizer).save(tmp_path / "teacher")
    command = f"distill --model {tmp_path}/teacher --data {built}/data --output {tmp_path}/distilled"
    found, out = results(capsys, tmp_path / "x.json", f"{command} --num_lengths 3 --batch_size 64")
    assert "train" in out and "300" in out and "the teacher's BLEU on the validation split: " in out
    decoding = found["distilled"]["decoding"]
    assert (decoding["num_steps"], decoding["num_lengths"]) == (1, 3)


@pytest.mark.slow
def test_train_average_and_evaluate(built, tmp_path, capsys):
    path = tmp_path / "results.json"
    gin = f"{TINY_GIN} --gin.Intervals.checkpoint=1 --gin.Intervals.evaluate=0 --gin.Mixture.weights=(1.0,0.5)"
    gin += " --gin.train.averaging=@Averaging() --gin.Averaging.kind=ema"
    command = f"train --data {built}/data {built}/data --model_dir {tmp_path}/model --json {path} {gin}"
    status, out, errors = run(capsys, command)
    assert status == 0 and out == "" and "train.num_steps = 2" in errors, errors
    assert json.loads(path.read_text())["loss"] > 0
    text = (tmp_path / "model" / "config.gin").read_text()
    assert "Averaging.kind = 'ema'" in text and "train.num_steps = 2" in text
    model = json.loads((tmp_path / "model" / "model.json").read_text())
    assert model["weights"] == {"kind": "ema", "steps": [2], "decay": 0.999}

    status, _, errors = run(capsys, f"translate eins --model {tmp_path}/model --step 1 --num_steps 1")
    assert status == 0 and "the checkpoint of step 1 is used" in errors, errors
    data = f"--data {built}/data --split validation"
    errors = refused(capsys, f"evaluate --model {tmp_path}/model --step 7 {data}")
    assert "has no checkpoint of step 7: it has those of 1, 2" in errors

    command = f"average --model_dir {tmp_path}/model --last 2 --output {tmp_path}/mean --decoding"
    assert "no decoding option 'top_j'" in refused(capsys, f"{command} top_j=3")
    assert "model.json" not in refused(capsys, f"{command} rerank=my_rules:Longest")
    assert "--decoding must be a list of NAME=VALUE, got 'num_lengths'" in refused(capsys, f"{command} num_lengths")
    found, _ = results(capsys, path, f"{command} num_lengths=3 num_steps=2")
    assert found == {"kind": "last", "steps": [1, 2], "decay": None}

    command = f"evaluate --model {tmp_path}/mean {data} --num_steps 1 --output {tmp_path}/out"
    rows, out = results(capsys, path, command)
    assert "20 sentences" in out and "mean: mean of the last 2 checkpoints, steps 1, 2" in out
    assert [row["num_steps"] for row in rows] == [1] and rows[0]["scores"]["passes"]["value"] == 1.0
    assert rows[0]["scores"]["hypotheses"]["value"] > 1.5, "the model's own top_k"
    assert (tmp_path / "out.rows/01.txt").read_text().count("\n") == 20


WHOLE = "--data {data} --model_dir {model}"
NO_CONFIGURATION = "there is no configuration: name one, as in `padir train toy_cpu`"
CAUSAL = TINY_GIN.replace("--gin.Objective.stage_weights=('all',)", "")
CAUSAL += "--gin.ModelConfig.causal=True --gin.train.objective=@Causal()"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (TINY_GIN, "no data: give --data DIR, or --gin.DATASET=DIR"),
        (f"--data {{data}} {TINY_GIN}", "no model_dir"),
        (
            "--model_dir {model} --data {data} {data} --gin.Mixture.weights=(1.0,)",
            "2 folders need one weight each, got 1",
        ),
        (WHOLE, NO_CONFIGURATION),
        (f"{WHOLE} --gin.MODEL_DIR=other", NO_CONFIGURATION),
        (f"{WHOLE} --steps 3", NO_CONFIGURATION),
        (f"toy_cpo {WHOLE}", "there is no configuration 'toy_cpo': did you mean 'toy_cpu'?"),
        (f"{WHOLE} {TINY_GIN} --validate strategy=rejecter", "rejecter needs a rejecter head"),
        (f"{WHOLE} {TINY_GIN} --validate beam=2", "beam applies only to the mode causal"),
        (f"{WHOLE} {TINY_GIN} --validate top_j=2", "there is no decoding option 'top_j'"),
        (f"{WHOLE} {TINY_GIN} --validate num_lengths", "--validate must be a list of NAME=VALUE, got 'num_lengths'"),
        (f"{WHOLE} {TINY_GIN} --gin.Mask.rate=0.5", "Mask.rate has no effect"),
        (f"{WHOLE} {CAUSAL} --validate num_lengths=2", "num_lengths applies only to the mode refine"),
    ],
)
def test_train_refuses_before_any_work(built, tmp_path, capsys, options, words):
    own = options.format(data=built / "data", model=tmp_path / "model")
    assert words in refused(capsys, f"train {own}")
    assert not (tmp_path / "model").exists()


def test_options_of_train_win_over_bindings_and_these_over_files(built, tmp_path, capsys):
    """Each option sets the parameter of its own; validation has a seed and a batch size of its own."""

    def printed(options=""):
        command = f"train toy_cpu --data {built}/data --model_dir {tmp_path}/model --print_config {options}"
        status, out, errors = run(capsys, command)
        assert status == 0, errors
        return [line for line in out.splitlines() if " = " in line]

    file = printed()
    assert {"train.num_steps = 10000", "Cosine.warmup_steps = 200", "Batching.rows = 16"} <= {*file}
    bound = printed("--gin.train.num_steps=7 --gin.train.seed=1 --gin.Batching.rows=3")
    assert {"train.num_steps = 7", "train.seed = 1", "Batching.rows = 3"} <= {*bound}
    options = "--steps 9 --seed 2 --rows 4 --learning_rate 0.5 --warmup 6 --dropout 0.25 --start_from de_en"
    options += " --evaluate_every 8"
    for words in (options, f"--gin.train.num_steps=7 --gin.train.seed=1 {options} --gin.Cosine.peak=0.1"):
        changed = {*printed(words)} - {*file}
        assert changed == {
            *("train.num_steps = 9", "train.seed = 2", "Batching.rows = 4", "Cosine.peak = 0.5"),
            *("Cosine.warmup_steps = 6", "ModelConfig.dropout_rate = 0.25", "Intervals.evaluate = 8"),
            "train.start_from = 'de_en'",
        }
    assert {*printed("--validate seed=3 batch_size=2")} == {*file}


@pytest.mark.parametrize("name", ["wmt14_de_en", "wmt17_en_zh_ar"])
def test_the_papers_configurations_are_printed_without_data(capsys, name):
    status, out, errors = run(capsys, f"train {name} --print_config --validate batch_size=16")
    assert status == 0, errors
    assert "Batching.rows = 512" in out
    folder = f"data/{name.removesuffix('_ar')}{'' if name.endswith('_ar') else '_distilled'}"
    decided = "languages, size of the vocabulary, placeholders; the folder is not here"
    assert out.splitlines()[-1] == f"# from the data's manifest ({folder}): {decided}"


def test_a_printed_configuration_shows_what_the_data_decide(built, tmp_path, capsys):
    command = f"train toy_cpu --print_config --model_dir {tmp_path}/model --data"
    status, out, _ = run(capsys, f"{command} {built}/data")
    vocabulary = load_manifest(built / "data").vocabulary
    assert status == 0 and out.splitlines()[-1] == f"# from the data's manifest ({built}/data): de-en, {vocabulary}"
    assert "top_j" in refused(capsys, f"{command} {tmp_path}/absent --validate top_j=2")
    command = f"train toy_cpu --model_dir {tmp_path}/model --data {tmp_path}/absent"
    assert "run `padir prepare` or `padir distill`" in refused(capsys, command)


def test_the_weights_of_a_gin_file_belong_to_its_own_folders(built, tmp_path, capsys):
    (tmp_path / "two.gin").write_text("DATASET = ('a', 'b')\nMixture.weights = (1.0, 2.0)\n")
    command = f"train --gin_file {tmp_path}/two.gin {TINY_GIN} --model_dir {tmp_path}/model --data {built}/data"
    status, out, errors = run(capsys, f"{command} --print_config")
    assert status == 0 and "Mixture" not in errors, errors
    assert "train.num_steps = 2" in out and "ModelConfig.width = 16" in out and not (tmp_path / "model").exists()
    assert "2 folders need one weight each" not in errors
    assert "3 folders need one weight each, got 2" in refused(capsys, f"{command} {built}/data {built}/data")


@pytest.mark.parametrize(("option", "tried"), [("", 2), ("--validate num_lengths=1", 1)])
def test_validation_tries_all_lengths_of_a_class(built, tmp_path, capsys, monkeypatch, option, tried):
    """As the trained model will by default: with one length of each class, half of all lengths are never tried."""
    options = []
    monkeypatch.setattr("padir.cli.making.validation_fn", lambda _, decoding: options.append(decoding))
    command = f"train --data {built}/data --model_dir {tmp_path}/model {TINY_GIN} --gin.ModelConfig.length_unit=2"
    status, _, errors = run(capsys, f"{command} --print_config {option}")
    assert status == 0, errors
    assert [each.num_lengths for each in options] == [tried]
