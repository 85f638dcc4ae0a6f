"""Weights under the names of Hugging Face's T5: what is called how, and that they come back as they were."""

import json
import shutil

import flax.traverse_util
import jax
import numpy as np
import pytest
from support.faults import refuses_damage, refuses_forgery
from support.refusals import refuses
from support.tiny_model import random_translator

from padir.cli import main
from padir.interop.huggingface import hugging_face_name, read_weights, t5_config, write_weights
from padir.models import save_model
from padir.storage.manifest import write_manifest


def arrays(translator):
    return flax.traverse_util.flatten_dict(jax.device_get(translator.params), sep="/")


@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"causal": True, "encoder_layers": 2, "tied": False, "mlp_activations": ("gelu", "linear")},
        {"rejecter": True, "decoder_layers": 3},
        {"decontextualised": True},
    ],
)
def test_they_come_back_as_they_were(tokenizer, tmp_path, sizes):
    translator = random_translator(tokenizer.with_placeholders(), **sizes)
    write_weights(translator, tmp_path / "out")
    back = read_weights(tmp_path / "out")
    before, after = arrays(translator), arrays(back)
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    assert back.card == translator.card and back.tokenizer.sha256 == tokenizer.sha256
    assert back.tokenizer.ids == translator.tokenizer.ids


def t5_names(encoder_layers, decoder_layers, mlp=("wi", "wo")):
    """Those of T5ForConditionalGeneration."""
    names = {"shared.weight", "encoder.final_layer_norm.weight", "decoder.final_layer_norm.weight"}
    for stack, layers, mlp_at in (("encoder", encoder_layers, 1), ("decoder", decoder_layers, 2)):
        names.add(f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
        for i in range(layers):
            start = f"{stack}.block.{i}.layer"
            names |= {f"{start}.{k}.layer_norm.weight" for k in range(mlp_at + 1)}
            names |= {f"{start}.0.SelfAttention.{x}.weight" for x in "qkvo"}
            names |= {f"{start}.{mlp_at}.DenseReluDense.{x}.weight" for x in mlp}
            if stack == "decoder":
                names |= {f"{start}.1.EncDecAttention.{x}.weight" for x in "qkvo"}
    return names


def test_an_autoregressive_model_is_a_t5(tokenizer):
    translator = random_translator(tokenizer, causal=True, encoder_layers=2)
    assert {hugging_face_name(name)[0] for name in arrays(translator)} == t5_names(2, 1)
    gated = random_translator(tokenizer, causal=True, tied=False, mlp_activations=("gelu", "linear"))
    names = {hugging_face_name(name)[0] for name in arrays(gated)}
    assert names == t5_names(1, 1, ("wi_0", "wi_1", "wo")) | {"lm_head.weight"}
    for model, tied, mlp, layers in ((translator, True, "relu", 2), (gated, False, "gated-gelu", 1)):
        config, found = t5_config(model.card), arrays(model)
        assert (config["tie_word_embeddings"], config["feed_forward_proj"]) == (tied, mlp)
        assert (config["num_layers"], config["num_decoder_layers"]) == (layers, 1)
        assert (config["vocab_size"], config["d_model"]) == found["token_embedder/embedding"].shape
        assert config["num_heads"] * config["d_kv"] == found["encoder/layers_0/attention/query/kernel"].shape[1]
        assert (config["d_ff"], config["d_model"]) == found["encoder/layers_0/mlp/wo/kernel"].shape


def test_what_t5_lacks_keeps_its_name(tokenizer):
    names = [hugging_face_name(name)[0] for name in arrays(random_translator(tokenizer, rejecter=True))]
    assert len(set(names)) == len(names)
    own = {name for name in names if name.startswith("padir.")}
    assert set(names) - own == t5_names(1, 1)
    assert own == {
        "padir.decoder.abs_pos_embed.embedding",
        "padir.decoder.layers_0.pre_positional_attention_layer_norm.scale",
        *(f"padir.decoder.layers_0.positional_attention.{x}.kernel" for x in ("query", "key", "value", "out")),
        "padir.length_predictor.length_embed.embedding",
        "padir.rejecter.binary_projection.kernel",
    }


def test_what_is_damaged_is_refused(tokenizer, tmp_path):
    write_weights(random_translator(tokenizer), tmp_path / "out")
    refuses_damage(read_weights, tmp_path / "out")
    needed = ["model.safetensors", "names.json", "model.json", "vocab.model"]
    refuses_forgery(read_weights, shutil.copytree(tmp_path / "out", tmp_path / "copy"), needed)
    names = json.loads((tmp_path / "out" / "names.json").read_text())
    names.pop("token_embedder/embedding")
    for wrong, words in (
        (names, "token_embedder/embedding ... shape ... got no such array"),
        *((each, "holds no weights") for each in ([], None, {"token_embedder/embedding": 1}, {"a": {"name": "b"}})),
    ):
        (tmp_path / "out" / "names.json").write_text(json.dumps(wrong))
        write_manifest(tmp_path / "out")
        refuses(read_weights, words, tmp_path / "out")


def test_the_command(tokenizer, tmp_path, capsys):
    translator = random_translator(tokenizer, causal=True)
    save_model(tmp_path / "model", translator.params, translator.card, translator.tokenizer, "")
    arguments = ["export", "--what", "weights", "--model", str(tmp_path / "model"), "--output", str(tmp_path / "out")]
    assert main(arguments) == 0
    assert read_weights(tmp_path / "out").card == translator.card
    for name, words in {
        "beam": ["--beam", "2"],
        "seed": ["--seed", "1"],
    }.items():
        assert main([*arguments, "--overwrite", *words]) == 2
        assert f"{name} applies only to programs" in capsys.readouterr().err
