"""Exports weights under the names of Hugging Face's T5, for other frameworks, and imports exported folders.

padir names parameters as T5X does. Parameters that T5 also has get their name in Hugging Face's models, and kernels of
linear maps are transposed (`hugging_face_name`). Parameters that T5 lacks (positional attention, the position table,
the length and rejecter heads) keep their axes and their name in padir, with dots for slashes and the prefix "padir.".

An autoregressive model of padir is a T5, so its folder has a config.json. Other models have all parts of T5, but their
decoder is bidirectional.
"""

from __future__ import annotations

import json
import re
from os import PathLike
from pathlib import Path
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from padir.errors import PadirError
from padir.models.directory import ModelCard, card_of, model_params
from padir.storage.files import read_json
from padir.storage.folders import atomic_folder, check_replaceable
from padir.storage.manifest import check_manifest, write_manifest
from padir.text.tokenizer import Tokenizer
from padir.translator import Translator

WEIGHTS, NAMES, CARD = "model.safetensors", "names.json", "model.json"
VOCABULARY, T5_CONFIG = "vocab.model", "config.json"
_PREFIX = "padir."
_LAYER = re.compile(r"(encoder|decoder)/layers_(\d+)/(\w+)/(.+)")
_PROJECTIONS = {"query/kernel": "q", "key/kernel": "k", "value/kernel": "v", "out/kernel": "o"}
_BLOCKS = {  # (number of the sublayer within its layer, Hugging Face's name)
    ("encoder", "attention"): (0, "SelfAttention"),
    ("encoder", "mlp"): (1, "DenseReluDense"),
    ("decoder", "self_attention"): (0, "SelfAttention"),
    ("decoder", "encoder_decoder_attention"): (1, "EncDecAttention"),
    ("decoder", "mlp"): (2, "DenseReluDense"),
}
_NORMS = {  # the block that each norm precedes
    "pre_attention_layer_norm": "attention",
    "pre_self_attention_layer_norm": "self_attention",
    "pre_cross_attention_layer_norm": "encoder_decoder_attention",
    "pre_mlp_layer_norm": "mlp",
}
_OTHERS = {  # (name, True if the axes are swapped)
    "token_embedder/embedding": ("shared.weight", False),
    "encoder/encoder_norm/scale": ("encoder.final_layer_norm.weight", False),
    "decoder/decoder_norm/scale": ("decoder.final_layer_norm.weight", False),
    "decoder/logits_dense/kernel": ("lm_head.weight", True),
}
_BIAS = ".block.0.layer.0.SelfAttention.relative_attention_bias.weight"
_OTHERS |= {f"{stack}/relpos_bias/rel_embedding": (stack + _BIAS, True) for stack in ("encoder", "decoder")}


def hugging_face_name(name: str) -> tuple[str, bool]:
    """Hugging Face's name of a parameter, and True if its axes are swapped.

    >>> hugging_face_name("decoder/layers_3/encoder_decoder_attention/query/kernel")
    ('decoder.block.3.layer.1.EncDecAttention.q.weight', True)
    >>> hugging_face_name("length_predictor/length_embed/embedding")
    ('padir.length_predictor.length_embed.embedding', False)
    """
    if name in _OTHERS:
        return _OTHERS[name]
    if layer := _LAYER.fullmatch(name):
        stack, number, block, rest = layer.groups()
        if found := _BLOCKS.get((stack, _NORMS.get(block, block))):
            start = f"{stack}.block.{number}.layer.{found[0]}"
            if block in _NORMS and rest == "scale":
                return f"{start}.layer_norm.weight", False
            part = rest.removesuffix("/kernel") if block == "mlp" else _PROJECTIONS.get(rest)
            if part is not None and rest.endswith("/kernel"):
                return f"{start}.{found[1]}.{part}.weight", True
    return _PREFIX + name.replace("/", "."), False


def write_weights(translator: Translator, folder: str | PathLike[str], *, overwrite: bool = False) -> dict[str, Any]:
    """Writes the weights under Hugging Face's names, with the vocabulary, the model card and the map of names.

    Args:
      folder: the folder to write, whole or not at all.
      overwrite: replace weights that were written there before.

    Returns:
      The metrics that `padir export --what weights` prints.

    Raises:
      PadirError: the folder holds something else.
    """
    flat = flax.traverse_util.flatten_dict(jax.device_get(translator.params), sep="/")
    arrays = {}
    names = {}
    for name, value in flat.items():
        there, turned = hugging_face_name(name)
        arrays[there] = np.asarray(value).T if turned else np.asarray(value)
        names[name] = {"name": there, "transposed": turned}
    check_replaceable(folder, NAMES, overwrite=overwrite)
    with atomic_folder(folder) as unfinished:
        _save(unfinished / WEIGHTS, arrays)
        (unfinished / NAMES).write_text(json.dumps(names, indent=1) + "\n")
        (unfinished / CARD).write_text(json.dumps(translator.card.to_json(), indent=1) + "\n")
        (unfinished / T5_CONFIG).write_text(json.dumps(t5_config(translator.card), indent=1) + "\n")
        (unfinished / VOCABULARY).write_bytes(translator.tokenizer.model_bytes)
        write_manifest(unfinished)
    mapped = sum(not entry["name"].startswith(_PREFIX) for entry in names.values())
    return {"arrays": len(arrays), "named_as_t5": mapped, "bytes": (Path(folder) / WEIGHTS).stat().st_size}


def read_weights(folder: str | PathLike[str]) -> Translator:
    """Reads the model of a folder that `write_weights` wrote; every file is compared with the manifest.

    Raises:
      PadirError: `write_weights` did not write the folder, a file is damaged, or the arrays do not fit the model card.
    """
    folder = Path(folder)
    check_manifest(folder, (WEIGHTS, NAMES, CARD, VOCABULARY))
    card = card_of(folder / CARD)
    try:
        arrays = safetensors.numpy.load_file(str(folder / WEIGHTS))
        flat = {
            name: arrays[entry["name"]].T if entry["transposed"] else arrays[entry["name"]]
            for name, entry in read_json(folder / NAMES).items()
        }
    except (KeyError, TypeError, AttributeError, safetensors.SafetensorError) as error:
        raise PadirError(
            f"{folder} holds no weights of `padir export --what weights` ({error}): write new ones"
        ) from error
    flat = model_params(flat, folder / WEIGHTS, card)
    tokenizer = Tokenizer.load(folder / VOCABULARY, card.ids.num_sentinels, card.ids.num_placeholders)
    return Translator(jax.device_put(flax.traverse_util.unflatten_dict(flat, sep="/")), card, tokenizer)


def _save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Writes arrays as safetensors, in bfloat16 if this changes no float32 value, which halves the file."""
    small = {name: value.astype(jnp.bfloat16) if value.dtype == np.float32 else value for name, value in arrays.items()}
    exact = all(np.array_equal(small[name].astype(value.dtype), value) for name, value in arrays.items())
    whole = {name: np.ascontiguousarray(value) for name, value in (small if exact else arrays).items()}
    path.write_bytes(safetensors.numpy.save(whole))  # save_file lets nobody else read the file


def t5_config(card: ModelCard) -> dict[str, Any]:
    """A model's sizes as fields of Hugging Face's T5Config, for the parts that T5 has."""
    c = card.config
    gated = len(c.mlp_activations) > 1
    plain = {"gelu": "gelu_new"}.get(c.mlp_activations[0], c.mlp_activations[0])  # JAX's is the approximation
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "vocab_size": card.ids.num_embeddings,
        "d_model": c.width,
        "d_kv": c.head_dim,
        "d_ff": c.mlp,
        "num_heads": c.heads,
        "num_layers": c.encoder_layers,
        "num_decoder_layers": c.decoder_layers,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "feed_forward_proj": f"gated-{c.mlp_activations[0]}" if gated else plain,
        "dropout_rate": c.dropout_rate,
        "layer_norm_epsilon": 1e-6,
        "tie_word_embeddings": c.tied,
        "pad_token_id": card.ids.padding,
        "eos_token_id": card.ids.eos,
        "decoder_start_token_id": 0,
        "is_encoder_decoder": True,
        "torch_dtype": "float32",
    }
