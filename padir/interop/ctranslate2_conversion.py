"""Converts autoregressive models to CTranslate2's format, weight by weight, as the architecture is T5's."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from padir import checks
from padir.decoding.shortlist import Shortlist
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.text.ids import EOS

COMPUTE_TYPES = ("float32", "int8")
_MAX_DISTANCE = 128  # largest distance of T5's relative positions


def convert(
    translator: Translator, folder: str | Path, compute_type: str = "float32", shortlist: Shortlist | None = None
) -> None:
    """Writes an autoregressive model as a CTranslate2 model directory, whose tokens are padir's ids as text.

    Args:
      shortlist: becomes the model's vocabulary map, which a translation uses if it is asked to.

    Raises:
      PadirError: CTranslate2 is not installed or cannot run the model, the weights have 8 bits, the compute type is
        unknown, or the shortlist is of another vocabulary.
    """
    specs = import_ctranslate2().specs
    config, params = translator.card.config, translator.params
    if not config.causal:
        raise PadirError("CTranslate2 writes from left to right: convert an autoregressive model")
    checks.one_of(COMPUTE_TYPES, compute_type=compute_type)
    if config.dual:
        raise PadirError("CTranslate2 cannot run a dual model, whose decoder has distances to both sides")
    if shortlist is not None:
        shortlist.check(translator.tokenizer)
    if translator.loaded.as_integers:
        raise PadirError("CTranslate2 rounds weights by itself: convert the model as it was loaded, before quantised()")
    activation, gated = _activation(config, specs)
    common = {
        "activation": activation,
        "relative_attention_bias": True,
        "ffn_glu": gated,
        "rms_norm": True,
        "head_dim": config.head_dim,
    }
    encoder = specs.TransformerEncoderSpec(config.encoder_layers, config.heads, **common)
    decoder = specs.TransformerDecoderSpec(config.decoder_layers, config.heads, **common)
    embedding = np.array(params["token_embedder"]["embedding"], np.float32)  # CTranslate2 writes into it
    for spec, name, norm in ((encoder, "encoder", "encoder_norm"), (decoder, "decoder", "decoder_norm")):
        _set_stack(spec, params[name], norm, cross=name == "decoder")
    encoder.embeddings[0].weight = decoder.embeddings.weight = embedding
    encoder.scale_embeddings = decoder.scale_embeddings = False
    if config.tied:
        decoder.projection.weight = embedding
        decoder.scale_outputs = np.float32(config.width**-0.5)
    else:
        decoder.projection.weight = _weight(params["decoder"]["logits_dense"])
    spec = specs.TransformerSpec(encoder, decoder)
    words = [str(i) for i in range(len(embedding))]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.bos_token = spec.config.decoder_start_token = words[0]  # id 0 precedes the first token
    spec.config.eos_token, spec.config.unk_token = words[EOS], words[translator.card.ids.unk]
    spec.config.layer_norm_epsilon = 1e-6
    spec.validate()
    spec.optimize(quantization=None if compute_type == "float32" else compute_type)
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as other:
        if shortlist is not None:
            path = Path(other) / "map"
            path.write_text("".join(f"{line}\n" for line in _vocabulary_map(shortlist)))
            spec.register_vocabulary_mapping(str(path))
        spec.save(str(folder))


def _vocabulary_map(shortlist: Shortlist) -> Iterator[str]:
    """The lines of CTranslate2's vocabulary map: a source id, a tab, and its candidates; first those without source."""
    always = np.flatnonzero(shortlist.likely(np.array([], int)))
    yield f"\t{' '.join(map(str, always))}"
    for source, candidates_K in enumerate(shortlist.candidates_PK):
        if source > 0 and candidates_K.any():
            yield f"{source}\t{' '.join(map(str, candidates_K[candidates_K > 0]))}"


def _set_stack(spec: Any, params: Any, norm: str, *, cross: bool) -> None:
    spec.layer_norm.gamma = np.asarray(params[norm]["scale"], np.float32)
    for i, layer in enumerate(spec.layer):
        own = params[f"layers_{i}"]
        attention = "self_attention" if cross else "attention"
        layer.self_attention.queries_scale = np.float32(1)
        layer.self_attention.layer_norm.gamma = np.asarray(own[f"pre_{attention}_layer_norm"]["scale"], np.float32)
        layer.self_attention.linear[0].weight = _weight(*(own[attention][name] for name in ("query", "key", "value")))
        layer.self_attention.linear[1].weight = _weight(own[attention]["out"])
        table = np.asarray(params["relpos_bias"]["rel_embedding"], np.float32)
        layer.self_attention.relative_attention_bias = table.T.copy()
        layer.self_attention.relative_attention_max_distance = np.int32(_MAX_DISTANCE)
        if cross:
            memory = own["encoder_decoder_attention"]
            layer.attention.queries_scale = np.float32(1)
            layer.attention.layer_norm.gamma = np.asarray(own["pre_cross_attention_layer_norm"]["scale"], np.float32)
            layer.attention.linear[0].weight = _weight(memory["query"])
            layer.attention.linear[1].weight = _weight(memory["key"], memory["value"])
            layer.attention.linear[2].weight = _weight(memory["out"])
        layer.ffn.layer_norm.gamma = np.asarray(own["pre_mlp_layer_norm"]["scale"], np.float32)
        if "wi" in own["mlp"]:
            layer.ffn.linear_0.weight = _weight(own["mlp"]["wi"])
        else:
            layer.ffn.linear_0.weight = _weight(own["mlp"]["wi_0"])
            layer.ffn.linear_0_noact.weight = _weight(own["mlp"]["wi_1"])
        layer.ffn.linear_1.weight = _weight(own["mlp"]["wo"])


def _weight(*maps: Any) -> np.ndarray:
    """Kernels [D_in, D_out] as one weight [sum of D_out, D_in]."""
    return np.concatenate([np.asarray(each["kernel"], np.float32).T for each in maps])


def _activation(config: ModelConfig, specs: Any) -> tuple[Any, bool]:
    known = {"relu": specs.Activation.RELU, "gelu": specs.Activation.GELUTanh, "silu": specs.Activation.SWISH}
    first, *rest = config.mlp_activations
    if first not in known or rest not in ([], ["linear"]):
        raise PadirError(f"CTranslate2 has no block with the activations {config.mlp_activations}")
    return known[first], bool(rest)


def import_ctranslate2() -> Any:
    """Imports CTranslate2, or raises a PadirError that says how to install it."""
    try:
        import ctranslate2  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise PadirError(f"CTranslate2 cannot be imported ({error}): pip install 'padir[peers]'") from None
    return ctranslate2
