"""Runs autoregressive models in CTranslate2, which searches several times as fast as padir does on a CPU.

In float32 padir and CTranslate2 write the same tokens by greedy search. `CTranslate2Engine` searches for token lists;
`in_ctranslate2` translates text; a distillation of hours takes minutes with it.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from padir import checks
from padir.decoding.autoregressive import length_limits
from padir.decoding.hypothesis import Hypothesis, SourceSentence
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.search import Beam
from padir.decoding.shortlist import Shortlist
from padir.decoding.writer import Shapes, Written
from padir.errors import PadirError
from padir.models.config import ModelConfig
from padir.options import OPTIONS
from padir.text.ids import EOS
from padir.text.tokenizer import Tokenizer
from padir.translator import Translator


def beam_of(decoding: Decoding) -> Beam:
    """The beam search of the options; raises a PadirError if they draw tokens."""
    if decoding.temperature:
        raise PadirError(f"CTranslate2 runs only greedy and beam search here, got {decoding.search}")
    return Beam(decoding.beam, decoding.length_penalty)


@dataclasses.dataclass(frozen=True)
class CTranslate2Engine:
    """A converted model in CTranslate2: its `ctranslate2.Translator` and tokenizer.

    Attributes:
      banned: ids that no translation has.
      listed: True if the model's vocabulary map gives each batch its own vocabulary.
    """

    engine: Any
    tokenizer: Tokenizer
    banned: tuple[int, ...]
    listed: bool = False

    @staticmethod
    def of(
        translator: Translator,
        compute_type: str,
        *,
        workers: int = 1,
        threads: int = 1,
        shortlist: Shortlist | None = None,
    ) -> CTranslate2Engine:
        """Converts a model.

        `workers` batches run at a time, each in a number of `threads`. A shortlist restricts each batch to the ids on
        its list. Unlike padir, CTranslate2 does not pad the list, and uses it even if it is long.
        """
        with tempfile.TemporaryDirectory() as folder:
            convert(translator, folder, compute_type, shortlist)
            engine = import_ctranslate2().Translator(
                folder, device="cpu", compute_type=compute_type, inter_threads=workers, intra_threads=threads
            )
        banned = tuple(i for i in translator.card.ids.special if i != EOS)
        return CTranslate2Engine(engine, translator.tokenizer, banned, shortlist is not None)

    @property
    def compute_type(self) -> str:
        return self.engine.compute_type

    def write(
        self,
        sources: Sequence[list[int]],
        search: Beam,
        *,
        longest: int,
        shortest: int = 2,
        scores: bool = True,
        hypotheses: int = 1,
    ) -> Any:
        """Searches for the best translation of each source; returns CTranslate2's results.

        Args:
          sources: token lists with EOS, which are one batch.
          longest, shortest: limits of the number of tokens, with EOS, for all sources.
          scores: compute log-probabilities, which greedy search does not need.
          hypotheses: number of translations of each source, at most the size of the beam.
        """
        return self.engine.translate_batch(
            [list(map(str, tokens)) for tokens in sources],
            max_batch_size=0,  # all in one batch, in their order
            max_input_length=0,  # no limit beside the model's
            beam_size=search.size,
            length_penalty=search.alpha,
            max_decoding_length=longest - 1,  # EOS does not count
            min_decoding_length=shortest - 1,
            suppress_sequences=[[str(i)] for i in self.banned],
            return_scores=scores,
            num_hypotheses=hypotheses,
            use_vmap=self.listed,
        )

    def hypotheses(self, result: Any, limit: int) -> list[Hypothesis]:
        """The translations of one source; tokens beyond the limit, EOS included, are left out."""
        rows = [[int(word) for word in words][: limit - 1] for words in result.hypotheses]
        scores = result.scores or [float("nan")] * len(rows)
        passes = 1 + max(map(len, rows))
        return [Hypothesis(*each, passes) for each in zip(rows, scores, strict=True)]


@dataclasses.dataclass(frozen=True)
class CTranslate2Writer:
    """A writer that searches in CTranslate2.

    Attributes:
      max_length: most target tokens that the model takes, EOS included.
    """

    engine: CTranslate2Engine
    search: Beam
    max_length: int

    @property
    def most_hypotheses(self) -> int:
        return self.search.size

    def write(self, sources: Sequence[SourceSentence]) -> Written:
        """Writes the beam of each source; translations beyond padir's limit of tokens are cut."""
        if any(source.target_length is not None or source.template is not None for source in sources):
            raise PadirError("CTranslate2 takes no target_lengths and no template: leave them out")
        limits = length_limits([len(source.tokens) for source in sources], self.max_length)
        size = self.search.size
        tokens = [source.tokens for source in sources]
        results = self.engine.write(tokens, self.search, longest=max(limits), hypotheses=size)
        found = zip(results, limits, strict=True)
        hypotheses = [self.engine.hypotheses(result, limit) for result, limit in found]
        return Written(hypotheses, searched=size)


def in_ctranslate2(translator: Translator, compute_type: str) -> Translator:
    """A translator that writes in CTranslate2, with a worker on each core; padir does the rest.

    CTranslate2's beam search divides by length^alpha, padir's by ((5 + length) / 6)^alpha. So the two may choose
    differently. The model's own options lose `fusion`, as CTranslate2 reads no table of bigrams.

    Raises:
      PadirError: CTranslate2 is not installed or cannot run the model.
    """
    workers = os.cpu_count() or 1
    engine = CTranslate2Engine.of(translator, compute_type, workers=workers)

    def make(loaded: LoadedModel, decoding: Decoding, *, trace: bool, shapes: Shapes) -> CTranslate2Writer:
        if trace:
            raise PadirError("CTranslate2 records no trace: leave it out")
        for name in ("shortlist", "precision", "fusion"):
            if getattr(decoding, name) != OPTIONS[name].default:
                raise PadirError(f"CTranslate2 does not support padir's {name}: leave it out")
        return CTranslate2Writer(engine, beam_of(decoding), loaded.card.config.max_length)

    made = translator.with_writer(make, ThreadPoolExecutor(workers).map)  # a batch for each worker
    made.decoding = made.decoding.without("fusion")
    return made


def version(compute_type: str) -> str:
    """CTranslate2 with its version and the precision, as tables name it."""
    return f"ctranslate2 {import_ctranslate2().__version__}, {compute_type}"


COMPUTE_TYPES = ("float32", "int8")
_MAX_DISTANCE = 128  # largest distance of T5's relative positions


def convert(
    translator: Translator, folder: str | Path, compute_type: str = "float32", shortlist: Shortlist | None = None
) -> None:
    """Writes an autoregressive model as a CTranslate2 model directory, whose tokens are padir's ids as text.

    Args:
      shortlist: becomes the model's vocabulary map, which a translation uses if it is asked to.
    """
    specs = import_ctranslate2().specs
    config = translator.card.config
    params = translator.params
    if not config.causal:
        raise PadirError("CTranslate2 writes from left to right: convert an autoregressive model")
    checks.one_of(COMPUTE_TYPES, compute_type=compute_type)
    if config.dual:
        raise PadirError("CTranslate2 cannot run a dual model: convert an autoregressive model")
    if shortlist is not None:
        shortlist.check(translator.tokenizer)
    encoder = _stack(config, config.encoder_layers, specs, specs.TransformerEncoderSpec)
    decoder = _stack(config, config.decoder_layers, specs, specs.TransformerDecoderSpec)
    embedding = np.array(params["token_embedder"]["embedding"], np.float32)  # CTranslate2 writes into it
    _set_stack(encoder, params["encoder"], "encoder_norm", cross=False)
    _set_stack(decoder, params["decoder"], "decoder_norm", cross=True)
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
    spec.config.eos_token = words[EOS]
    spec.config.unk_token = words[translator.card.ids.unk]
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


def _set_stack(spec: Any, params: Mapping[str, Any], norm: str, *, cross: bool) -> None:
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


def _weight(*maps: Mapping[str, Any]) -> np.ndarray:
    """Kernels [D_in, D_out] as one weight [sum of D_out, D_in]."""
    return np.concatenate([np.asarray(each["kernel"], np.float32).T for each in maps])


def _stack(config: ModelConfig, layers: int, specs: Any, kind: Callable[..., Any]) -> Any:
    """A stack of CTranslate2 without weights, of one of the kinds in its module `specs`."""
    known = {"relu": specs.Activation.RELU, "gelu": specs.Activation.GELUTanh, "silu": specs.Activation.SWISH}
    first, *rest = config.mlp_activations
    if first not in known or rest not in ([], ["linear"]):
        raise PadirError(f"CTranslate2 has no block with the activations {config.mlp_activations}")
    return kind(
        layers,
        config.heads,
        activation=known[first],
        relative_attention_bias=True,
        ffn_glu=bool(rest),
        rms_norm=True,
        head_dim=config.head_dim,
    )


def import_ctranslate2() -> Any:
    """Imports CTranslate2, or raises a PadirError that says how to install it."""
    try:
        import ctranslate2  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise PadirError(f"CTranslate2 cannot be imported ({error}): pip install 'padir[peers]'") from None
    return ctranslate2
