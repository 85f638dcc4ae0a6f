"""Models to and from T5X checkpoints, without T5X."""

import dataclasses
import json
import os
import re
from pathlib import Path

import flax.traverse_util
import jax
import numpy as np
import pytest
from etils import epath
from support.refusals import refuses
from support.small_corpus import small_tokenizer
from support.tiny_model import TINY, random_model_dir, random_translator

from padir import Translator
from padir.cli import main
from padir.interop.t5x.checkpoint import read, write
from padir.interop.t5x.exchange import (
    check_described,
    check_fits,
    export_checkpoint,
    import_model,
    read_description,
    take,
    write_description,
)
from padir.models import Transformer, Weights, init_params, load_model, param_shapes

SIZES = ("width", "heads", "head_dim", "mlp", "encoder_layers", "decoder_layers", "max_length", "dropout_rate")
GIN = [f"--gin.ModelConfig.{name}={getattr(TINY, name)}" for name in SIZES]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return random_model_dir(tmp_path_factory.mktemp("random"))


def flat(tree):
    return {name: np.asarray(v) for name, v in flax.traverse_util.flatten_dict(jax.device_get(tree), sep="/").items()}


def t5_checkpoint(folder, tokenizer, rows=0, step=1_000_000, **sizes):
    """A checkpoint with the names and shapes of T5 1.1: gated, untied, a decoder from left to right, padded tables."""
    config = dataclasses.replace(TINY, causal=True, mlp_activations=("gelu", "linear"), tied=False, **sizes)
    ids = dataclasses.replace(tokenizer.ids, num_embeddings=tokenizer.ids.vocab_size + rows)
    params = init_params(Transformer(config, ids), seed=5)
    return write(folder, params, step), flat(params)


def test_a_model_goes_to_t5x_and_back(model_dir, tmp_path):
    folder = export_checkpoint(model_dir, tmp_path / "run")
    assert folder.name == "checkpoint_7"
    assert main(["t5x", "import", str(tmp_path / "run"), "--output", str(tmp_path / "back")]) == 0
    before, after = load_model(model_dir), load_model(tmp_path / "back")
    assert after[1] == dataclasses.replace(before[1], weights=Weights(steps=(7,)))
    assert after[2].sha256 == before[2].sha256
    assert flat(before[0]).keys() == flat(after[0]).keys()
    for name, value in flat(before[0]).items():
        np.testing.assert_array_equal(value, flat(after[0])[name], err_msg=name)
    texts = ["eins zwei drei", "neun acht"]
    assert Translator.load(tmp_path / "back").translate(texts) == Translator.load(model_dir).translate(texts)


def test_a_described_checkpoint_needs_no_arguments_and_takes_none(model_dir, tmp_path, capsys):
    export_checkpoint(model_dir, tmp_path / "run")
    command = ["t5x", "import", str(tmp_path / "run"), "--output", str(tmp_path / "back")]
    assert main([*command, "--languages", "de-en"]) == 2
    assert "padir.json beside the checkpoint describes the model" in capsys.readouterr().err
    assert main([*command, "--set", "num_sentinels=7"]) == 2
    assert "padir.json describes does not read --set num_sentinels" in capsys.readouterr().err
    (tmp_path / "run" / "padir.json").write_text("{")
    assert main(command) == 2
    assert "padir.json is damaged" in capsys.readouterr().err
    assert not (tmp_path / "back").exists()


def test_without_a_description_the_arguments_give_it(model_dir, tmp_path, capsys):
    params, card, tokenizer = load_model(model_dir)
    write(tmp_path / "run", params, 40)
    command = ["t5x", "import", str(tmp_path / "run"), "--output", str(tmp_path / "back")]
    assert main(command) == 2
    assert "give --vocab FILE and --languages such as de-en and a configuration" in capsys.readouterr().err
    assert main([*command, "--languages", "de-en"]) == 2
    assert "model: give --vocab FILE and a configuration" in capsys.readouterr().err
    arguments = ["--vocab", str(model_dir / "vocab.model"), "--languages", "de-en"]
    assert main([*command, *arguments, *GIN, "--json", str(tmp_path / "report.json")]) == 0
    imported = load_model(tmp_path / "back")
    assert (imported[1].config, imported[1].step) == (card.config, 40)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["numbers"]["taken"] == report["numbers"]["model"] == sum(v.size for v in flat(params).values())
    wider = [word.replace("mlp=32", "mlp=64") for word in GIN]
    # Another size is refused whole, and nothing is written.
    assert main([*command[:-1], str(tmp_path / "other"), *arguments, *wider]) == 2
    assert "mlp/wi/kernel: expected (16, 64), got (16, 32)" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()
    assert main([*command, *arguments, *GIN]) == 2
    assert "holds a model already" in capsys.readouterr().err


def test_a_head_that_judges_something_else_is_refused(tokenizer, tmp_path):
    translator = random_translator(tokenizer, rejecter=True)
    write(tmp_path / "run", translator.params, 40)
    for partial in (False, True):
        words = "rejecter_judges ... 'prediction' ... without padir.json"
        refuses(import_model, words, tmp_path / "run", tmp_path / "model", translator.card, tokenizer, partial=partial)
    published = random_translator(tokenizer, rejecter=True, rejecter_judges="prediction").card
    import_model(tmp_path / "run", tmp_path / "published", published, tokenizer)
    assert load_model(tmp_path / "published")[1].config.rejecter_judges == "prediction"
    write_description(tmp_path / "run", translator.card, tokenizer)  # a run with padir's adapter
    import_model(tmp_path / "run", tmp_path / "own", translator.card, tokenizer)
    assert load_model(tmp_path / "own")[1].config.rejecter_judges == "token"


def test_a_padded_table_comes_back_with_its_rows(tokenizer, tmp_path):
    card = random_translator(tokenizer).card
    ids = dataclasses.replace(card.ids, num_embeddings=512)
    write(tmp_path / "run", init_params(Transformer(card.config, ids), seed=0), 3)
    import_model(tmp_path / "run", tmp_path / "model", card, tokenizer)
    params, imported, _ = load_model(tmp_path / "model")
    assert params["token_embedder"]["embedding"].shape == (512, 16) and imported.ids == ids
    assert Translator.load(tmp_path / "model").translate(["eins"])[0].length > 0


@pytest.mark.slow
def test_parameters_of_t5_that_fit_are_taken_and_the_others_reported(tmp_path, capsys):
    tokenizer = small_tokenizer(tmp_path / "vocab.model")
    _, theirs = t5_checkpoint(tmp_path / "t5", tokenizer, rows=28)
    arguments = ["--vocab", str(tmp_path / "vocab.model"), "--languages", "de-en", "--set", "partial=true", *GIN]
    gated = ["--gin.ModelConfig.mlp_activations=('gelu', 'linear')", "--gin.ModelConfig.tied=False"]
    command = ["t5x", "import", str(tmp_path / "t5"), "--output", str(tmp_path / "start"), *arguments, *gated]
    assert main([*command, "--json", str(tmp_path / "report.json")]) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    ours = flat(load_model(tmp_path / "start")[0])
    for name, value in theirs.items():
        if name == "decoder/relpos_bias/rel_embedding":
            assert "writes from left to right" in report["fresh"][name]
            assert not np.array_equal(ours[name], value)
        elif name == "token_embedder/embedding":
            assert report["taken"][name] == "the first 401 of its 429 rows"
            np.testing.assert_array_equal(ours[name], value[:401])
        elif name == "decoder/logits_dense/kernel":
            np.testing.assert_array_equal(ours[name], value[:, :401])
        else:
            assert name in report["taken"]
            np.testing.assert_array_equal(ours[name], value, err_msg=name)
    missing = {name for name in ours if name not in theirs}
    assert missing == set(report["fresh"]) - {"decoder/relpos_bias/rel_embedding"}
    assert any("positional_attention" in name for name in missing) and "decoder/abs_pos_embed/embedding" in missing
    assert "checkpoint has none" in capsys.readouterr().err
    # A plain block instead of a gated one, tied, and wider attention: less of it fits, and the reasons are told.
    command[command.index(str(tmp_path / "start"))] = str(tmp_path / "plain")
    wider = [re.sub("head_dim=.*", "head_dim=4", word) for word in command[: -len(gated)]]
    assert main([*wider, "--json", str(tmp_path / "less.json")]) == 0
    less = json.loads((tmp_path / "less.json").read_text())
    assert less["unused"]["decoder/logits_dense/kernel"] == less["unused"]["encoder/layers_0/mlp/wi_0/kernel"]
    assert (
        "its shape is (16, 16) in the checkpoint, (16, 8) in the model"
        == less["fresh"]["encoder/layers_0/attention/key/kernel"]
    )
    assert less["numbers"]["taken"] < report["numbers"]["taken"]


def test_a_causal_model_takes_a_causal_decoders_bias(tokenizer, tmp_path):
    _, theirs = t5_checkpoint(tmp_path / "t5", tokenizer)
    _, report = take(dict(theirs), theirs, causal=True)
    assert report.taken.keys() == theirs.keys() and not report.fresh and not report.unused
    refining = flat(random_translator(tokenizer).params)
    _, report = take(dict(theirs), refining, causal=True)
    assert report.fresh["decoder/relpos_bias/rel_embedding"] == "the checkpoint's decoder sees both sides"


def test_a_table_of_another_vocabulary_is_not_taken(tokenizer, tmp_path):
    ours = flat(random_translator(tokenizer).params)
    _, theirs = t5_checkpoint(tmp_path / "t5", tokenizer, rows=129)
    _, report = take(ours, theirs, causal=False)
    assert (
        report.unused["token_embedder/embedding"] == "its shape is (530, 16) in the checkpoint, (401, 16) in the model"
    )
    padded = theirs["token_embedder/embedding"][:-1]  # by as many rows as T5X may add
    params, _ = take(ours, theirs | {"token_embedder/embedding": padded}, causal=False)
    np.testing.assert_array_equal(params["token_embedder/embedding"], padded[:401])


def test_nothing_fits(tmp_path):
    ours, theirs = {"encoder/scale": np.ones(4)}, {"a/b": np.ones(4)}
    refuses(take, "name and shape of a parameter ... it has a/b", ours, theirs, causal=False)


def test_fits_names_what_differs(translator, tmp_path):
    params = flat(translator.params)
    check_fits(params, translator.model, tmp_path)
    shapes = param_shapes(translator.card.config, translator.card.ids)
    assert shapes == {name: value.shape for name, value in params.items()}
    del params["encoder/encoder_norm/scale"]
    params["encoder/more"] = np.ones(3)
    words = "encoder_norm/scale: expected (16,), got none; encoder/more: expected none, got (3,)"
    refuses(check_fits, words, params, translator.model, tmp_path)


def test_a_description_goes_with_every_checkpoint_of_a_run(tokenizer, tmp_path):
    translator = random_translator(tokenizer)
    for step in (10, 20):
        write(tmp_path / "run", translator.params, step)
    write_description(tmp_path / "run", translator.card, translator.tokenizer)
    for arguments, step in (([str(tmp_path / "run")], 20), ([str(tmp_path / "run" / "checkpoint_10")], 10)):
        assert main(["t5x", "import", *arguments, "--output", str(tmp_path / str(step))]) == 0
        assert load_model(tmp_path / str(step))[1].step == step


def test_the_checkpoint_says_its_steps(tmp_path):
    folder = write(tmp_path, {"scale": np.ones(2)}, 12)
    folder.rename(tmp_path / "renamed")
    assert read(tmp_path / "renamed").step == 12


def test_a_description_is_written_to_a_bucket(model_dir, tmp_path, monkeypatch):
    """T5X's MODEL_DIR may be an address; a folder stands for the bucket."""
    monkeypatch.chdir(tmp_path)
    _, card, tokenizer = load_model(model_dir)

    def local(path):
        return str(path).replace("gs://", str(tmp_path / "buckets") + "/")

    with monkeypatch.context() as patched:
        patched.setattr(epath, "Path", lambda path: Path(local(path)))
        write_description("gs://bucket/run", card, tokenizer)
    assert os.listdir(tmp_path) == ["buckets"]
    (tmp_path / "buckets" / "bucket" / "run" / "checkpoint_0").mkdir()
    found = read_description(tmp_path / "buckets" / "bucket" / "run")
    assert found is not None and (found[0], found[1].sha256) == (card, tokenizer.sha256)


def test_an_export_into_another_models_folder_is_refused(model_dir, tmp_path):
    """Otherwise padir.json and vocab.model would describe the earlier checkpoint as another model."""
    translator = Translator.load(model_dir)
    later = dataclasses.replace(translator.card, step=50, weights=Weights(steps=(50,)))
    Translator(translator.params, later, translator.tokenizer).save(tmp_path / "later")
    other = dataclasses.replace(later, source_language="ro", target_language="fr", step=60)
    Translator(translator.params, other, translator.tokenizer).save(tmp_path / "other")
    export_checkpoint(model_dir, tmp_path / "run")
    export_checkpoint(tmp_path / "later", tmp_path / "run")  # another step of the same model
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.*")}
    refuses(export_checkpoint, "holds checkpoints of another model", tmp_path / "other", tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").glob("*.*")} == before
    assert not (tmp_path / "run" / "checkpoint_60").exists()


def test_a_run_of_another_direction_is_not_resumed(model_dir, tmp_path):
    """T5X would train nothing, and padir.json would describe the earlier checkpoints as the other direction."""
    translator = Translator.load(model_dir)
    card = dataclasses.replace(translator.card, task="another name", decoding={"num_lengths": 2})
    check_described(tmp_path, card, translator.tokenizer)
    write_description(tmp_path, translator.card, translator.tokenizer)
    check_described(tmp_path, card, translator.tokenizer)
    other = dataclasses.replace(card, source_language=card.target_language, target_language=card.source_language)
    refuses(check_described, "holds checkpoints of another model", tmp_path, other, translator.tokenizer)
    (tmp_path / "vocab.model").write_bytes(b"another")
    refuses(check_described, "holds checkpoints of another model", tmp_path, card, translator.tokenizer)


def test_an_interrupted_export_can_be_repeated(model_dir, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("padir.interop.t5x.exchange.write", stop)
        export_checkpoint(model_dir, tmp_path / "run")
    export_checkpoint(model_dir, tmp_path / "run")
    assert read_description(tmp_path / "run") is not None


def test_parameters_that_are_not_finite_are_refused(model_dir, tmp_path):
    params, card, tokenizer = load_model(model_dir)
    broken = jax.tree.map(np.array, params)
    broken["decoder"]["decoder_norm"]["scale"][0] = np.nan
    write(tmp_path, broken, 3)
    refuses(import_model, "finite ... decoder/decoder_norm/scale", tmp_path, tmp_path / "model", card, tokenizer)
    assert not (tmp_path / "model").exists()
