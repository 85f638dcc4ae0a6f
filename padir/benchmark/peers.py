"""Runs padir's autoregressive models in CTranslate2, for comparison of speed.

The architecture is T5's, which CTranslate2 supports, so that a model is converted weight by weight; in float32 padir
and CTranslate2 write the same tokens.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from padir import checks
from padir.benchmark.batches import TimedBatch
from padir.benchmark.decoding import System
from padir.decoding.autoregressive import length_limits
from padir.decoding.pipeline import Observer, unobserved
from padir.decoding.search import Beam, Greedy
from padir.decoding.text import one_line
from padir.decoding.translation import Translation
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.text.ids import EOS

COMPUTE_TYPES = ("float32", "int8")
_MAX_DISTANCE = 128  # largest distance of T5's relative positions


def peers(systems: Sequence[System], compute_types: Sequence[str]) -> list[Peer]:
    """Makes a `Peer` of every autoregressive system in each compute type, without shortlists.

    Each peer is made once with one thread and once with as many threads as there are cores: the load of the machine
    decides which is faster. CTranslate2's beam search divides by length^alpha where padir's divides by
    ((5 + length) / 6)^alpha, so that the two may choose differently.

    Raises:
      PadirError: no system is autoregressive in float32, CTranslate2 is not installed, or it cannot run the model.
    """
    causal = [system for system in systems if system.causal and system.precision == "float32"]
    if compute_types and not causal:
        raise PadirError(
            "CTranslate2 writes from left to right and is converted from float32: give an autoregressive model, too,"
            " and float32 among the precisions"
        )
    whole = [dataclasses.replace(each, decoding=dataclasses.replace(each.decoding, shortlist=None)) for each in causal]
    threads = sorted({1, os.cpu_count() or 1})
    return [
        Peer.of(each, type_, number) for type_ in compute_types for number in threads for each in dict.fromkeys(whole)
    ]


def convert(translator: Translator, folder: str | Path, compute_type: str = "float32") -> None:
    """Writes an autoregressive model as a CTranslate2 model directory, whose tokens are padir's ids as text.

    Raises:
      PadirError: CTranslate2 is not installed or cannot run the model, or the compute type is unknown.
    """
    specs = _import().specs
    config, params = translator.card.config, translator.params
    if not config.causal:
        raise PadirError("CTranslate2 writes from left to right: convert an autoregressive model")
    checks.one_of(COMPUTE_TYPES, compute_type=compute_type)
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
    spec.save(str(folder))


def _set_stack(spec: Any, params: Any, norm: str, *, cross: bool) -> None:
    spec.layer_norm.gamma = np.asarray(params[norm]["scale"])
    for i, layer in enumerate(spec.layer):
        own = params[f"layers_{i}"]
        attention = "self_attention" if cross else "attention"
        layer.self_attention.queries_scale = np.float32(1)
        layer.self_attention.layer_norm.gamma = np.asarray(own[f"pre_{attention}_layer_norm"]["scale"])
        layer.self_attention.linear[0].weight = _weight(*(own[attention][name] for name in ("query", "key", "value")))
        layer.self_attention.linear[1].weight = _weight(own[attention]["out"])
        layer.self_attention.relative_attention_bias = np.asarray(params["relpos_bias"]["rel_embedding"]).T.copy()
        layer.self_attention.relative_attention_max_distance = np.int32(_MAX_DISTANCE)
        if cross:
            memory = own["encoder_decoder_attention"]
            layer.attention.queries_scale = np.float32(1)
            layer.attention.layer_norm.gamma = np.asarray(own["pre_cross_attention_layer_norm"]["scale"])
            layer.attention.linear[0].weight = _weight(memory["query"])
            layer.attention.linear[1].weight = _weight(memory["key"], memory["value"])
            layer.attention.linear[2].weight = _weight(memory["out"])
        layer.ffn.layer_norm.gamma = np.asarray(own["pre_mlp_layer_norm"]["scale"])
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


@dataclasses.dataclass(frozen=True)
class Peer(System):
    """CTranslate2 with a converted model, from text to text; padir's vocabulary tokenises and detokenises.

    Attributes:
      engine: a `ctranslate2.Translator`.
    """

    engine: Any = None

    @property
    def precision(self) -> str:
        return self.engine.compute_type

    @staticmethod
    def of(system: System, compute_type: str, threads: int) -> Peer:
        """Converts the model of a system, and keeps the system's search.

        Raises:
          PadirError: CTranslate2 cannot run the model, or the search draws tokens.
        """
        if not isinstance(system.decoding.search, Beam | Greedy):
            raise PadirError(f"CTranslate2 is compared by greedy or beam search, got {system.decoding.search}")
        with tempfile.TemporaryDirectory() as folder:
            convert(system.translator, folder, compute_type)
            engine = _import().Translator(folder, device="cpu", compute_type=compute_type, intra_threads=threads)
        name = f"{system.model} by CTranslate2, {compute_type}, {threads} thread" + "s" * (threads > 1)
        return Peer(name, system.translator, system.decoding, engine)

    def __call__(self, batch: TimedBatch) -> list[Translation]:
        return self.run(batch)

    def run(self, batch: TimedBatch, observe: Observer = unobserved) -> list[Translation]:
        search = self.decoding.search
        sources = self.source(batch).tokens
        observe("tokenise", sources)
        if batch.target_lengths is not None:
            longest, shortest = max(batch.target_lengths), min(batch.target_lengths)
            if longest != shortest:
                raise PadirError(
                    "CTranslate2 can be made to write a number of tokens for a whole batch only, got lengths from"
                    f" {shortest} to {longest}: use batches of one sentence"
                )
        else:
            limits = length_limits([len(source) for source in sources], self.translator.card.config.max_length)
            longest, shortest = max(limits), 2
        results = self.engine.translate_batch(
            [list(map(str, tokens)) for tokens in sources],
            beam_size=search.size,
            length_penalty=getattr(search, "alpha", 0.0),
            max_decoding_length=longest - 1,  # EOS does not count
            min_decoding_length=shortest - 1,
            suppress_sequences=[[str(i)] for i in self.translator.card.ids.special if i != EOS],
            return_scores=True,
        )
        observe("encode and write", results)
        translations = []
        for result in results:
            ids = [int(word) for word in result.hypotheses[0]]
            text = one_line(self.translator.tokenizer.decode(ids))
            length = len(ids) + 1
            translations.append(Translation(text, result.scores[0], length, length, search.size))
        observe("detokenise", translations)
        return translations


def _import() -> Any:
    try:
        import ctranslate2  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise PadirError(f"the comparison needs CTranslate2 ({error}): pip install 'padir[peers]'") from None
    return ctranslate2
