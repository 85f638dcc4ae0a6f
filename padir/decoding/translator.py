"""`Translator`: text in, text out.

1. Tokenise; sort sentences by length into batches whose shapes come from a small set.
2. Encode; take the most likely target lengths; lay out N drafts of each sentence.
3. Refine all drafts in one jitted loop; keep each sentence's best by `Decoding.rerank`.
4. Turn tokens into text, without repeated tokens.

A causal model writes from left to right (`padir.decoding.autoregressive`) in place of steps 2 and 3; it can also score
given targets.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Sequence
from os import PathLike
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Bool, Int

from padir.decoding import autoregressive
from padir.decoding.lengths import candidates
from padir.decoding.options import Decoding, resolve
from padir.decoding.program_cache import Programs, mappings
from padir.decoding.refine_batch import (
    BUCKET,
    Drafts,
    Tried,
    encode,
    in_the_input,
    padded,
    refine_drafts,
    rows_together,
)
from padir.decoding.rerank import Hypothesis, Rescore
from padir.decoding.text import one_line, without_repeats
from padir.distributed.sharding import DATA, Sharding, mesh_of, on_host, spread
from padir.errors import PadirError
from padir.models.card import ModelCard
from padir.models.directory import load_model
from padir.models.encoder import Encoded
from padir.models.length import log_probs, top_lengths
from padir.models.params import param_axes
from padir.models.quantization import KEPT, quantise
from padir.models.transformer import Transformer
from padir.pretrained import DEFAULT
from padir.refinement.protocols import Corruption, Strategy
from padir.refinement.strategies import Padir
from padir.text.ids import EOS, round_up
from padir.text.tokenizer import Tokenizer

PROGRAMS = Programs((encode, refine_drafts, autoregressive.translate, autoregressive.score), mappings)

_TRACE_ROOM = 4  # steps


@dataclasses.dataclass(frozen=True)
class Translation:
    """One sentence's translation.

    Attributes:
      text: the best hypothesis.
      score: what `Decoding.rerank` gave it, by default its mean log-probability per token; of a causal model, what its
        search did, by default the log-probability with EOS over a length penalty.
      length: its target length in tokens, EOS included.
      passes: decoder passes that its row really took (a causal model's sentence: one a position); 0 for an empty line.
      hypotheses: how many drafts were refined, or rows searched.
      trace: if asked for, (pieces, log-probabilities) of the draft and of every step; None where nothing was written.
      truncated: whether the source was cut to what the model takes.
      candidates: if asked for (`Decoding.n_best`), the best hypotheses' texts and scores, this one first.
      candidate_lengths: their target lengths.
    """

    text: str
    score: float
    length: int
    passes: int
    hypotheses: int = 1
    trace: tuple[tuple[tuple[str, ...], tuple[float | None, ...]], ...] | None = None
    truncated: bool = False
    candidates: tuple[tuple[str, float], ...] = ()
    candidate_lengths: tuple[int, ...] = ()


class Scored(NamedTuple):
    """The log-probability of a given target, EOS included, and its number of tokens."""

    log_prob: float
    tokens: int


class EncodedBatch(NamedTuple):
    """Sources and what the encoder made of them, each decoder layer's keys and values of that, and how many of the rows
    are sentences."""

    source_BS: np.ndarray
    encoded: Encoded
    cross_kv: Any
    sentences: int


class Written(NamedTuple):
    """What a causal model's search ended with: N rows a sentence, the scores, and the passes of each sentence."""

    tokens_BNL: Any
    length_BN: Any
    score_BN: Any
    passes_B: Any


class Translator:
    """A loaded model. Where its parameters lie on several devices, these share the rows of a batch.

    >>> translator = Translator.load("runs/toy")  # doctest: +SKIP
    >>> translator.translate(["Der Hund schläft ."], num_steps=4)[0].text  # doctest: +SKIP
    'The dog is sleeping.'
    """

    def __init__(self, params: Any, card: ModelCard, tokenizer: Tokenizer):
        self.params, self.card, self.tokenizer = params, card, tokenizer
        self.model = Transformer(card.config, card.ids)
        self._mesh = mesh_of(params)

    @classmethod
    def load(
        cls,
        path: str | PathLike[str] = DEFAULT,
        *,
        corruption: Corruption | None = None,
        strategy: Strategy | None = None,
        sharding: Sharding | None = None,
    ) -> Translator:
        """Loads a model directory, or a model that comes with padir (`padir.pretrained`).

        Args:
          path: the directory, or such a model's name.
          corruption, strategy: in place of the model's own, which must be given where it was trained with a class that
            is not padir's.
          sharding: over all devices; None: one device.

        Raises:
          PadirError: it is missing, half-written or damaged, or cannot be shared by so many devices.
        """
        params, card, tokenizer = load_model(path, corruption=corruption, strategy=strategy)
        mesh = None if sharding is None else sharding.mesh()
        if sharding is None or mesh is None or mesh.size == 1:
            return cls(jax.device_put(params), card, tokenizer)
        sharding.check(mesh, card.config)
        axes = param_axes(Transformer(card.config, card.ids))
        return cls(jax.tree.map(spread, params, sharding.of_params(axes, params, mesh)), card, tokenizer)

    @property
    def as_integers(self) -> bool:
        """Whether the weights are of 8 bits."""
        return self.params["token_embedder"]["embedding"].dtype == np.int8

    def quantised(self) -> Translator:
        """The same model with 8-bit weights (`padir.models.quantization`): faster on CPUs, and not quite the same
        words.

        A sentence's words may then depend on its batch, too: a difference in the last bits, which float32 hides, can
        turn the rounding of an activation.

        Raises:
          PadirError: they are rounded already.
        """
        self._require_floats()
        return Translator(jax.jit(quantise)(self.params), self.card, self.tokenizer)

    def place(self, rows: Any) -> Any:
        """Arrays [B, ...] of a batch where its rows belong: on the devices that share them, if several do."""
        if self._mesh is None:
            return rows
        by_row = NamedSharding(self._mesh, PartitionSpec(DATA))
        return jax.tree.map(lambda array: spread(np.asarray(array), by_row), rows)

    def padded(self, sources: list[list[int]], batch_size: int) -> np.ndarray:
        """`padir.decoding.refine_batch.padded`, with rows for each of the devices that share them."""
        return padded(sources, batch_size, 1 if self._mesh is None else self._mesh.shape[DATA])

    def on_devices(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which programs run on the devices of the parameters."""
        return contextlib.nullcontext() if self._mesh is None else jax.set_mesh(self._mesh)

    def in_bfloat16(self) -> Translator:
        """The same model with weights and activations in bfloat16; softmax, logits and the length head stay float32.

        Raises:
          PadirError: its weights are 8-bit.
        """
        self._require_floats()
        params = {
            name: part if name in KEPT else jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), part)
            for name, part in self.params.items()
        }
        config = dataclasses.replace(self.card.config, dtype="bfloat16")
        return Translator(params, dataclasses.replace(self.card, config=config), self.tokenizer)

    def _require_floats(self) -> None:
        if self.as_integers:
            raise PadirError("the weights are rounded to 8 bits already: start from the model as it was loaded")

    def translate(
        self,
        texts: Sequence[str],
        decoding: Decoding | None = None,
        *,
        target_lengths: Sequence[int] | None = None,
        truncate: bool = False,
        trace: bool = False,
        first_number: int = 0,
        **changes: Any,
    ) -> list[Translation]:
        """Translates sentences, each on its own but for `Decoding.shortlist`, which a batch shares.

        Args:
          texts: one sentence each; an empty one gives an empty translation.
          decoding: how; `changes` are fields of it, such as num_steps=4.
          target_lengths: lengths in tokens, EOS included, for models with the oracle length head or to measure the
            gap of the predicted ones.
          truncate: cut sources that are too long instead of raising.
          trace: also give the draft and every step of the best hypothesis.
          first_number: the number of the first text, from which its random draft is made, where texts are a part of a
            longer input.

        Raises:
          PadirError: a source has more tokens than the model takes, or the options do not fit the model.
        """
        decoding = self.resolved(dataclasses.replace(decoding or Decoding(), **changes))
        causal = self.card.config.causal
        if causal and trace:
            raise PadirError("an autoregressive model has no steps to trace: every token is written once")
        if causal and target_lengths is not None:
            raise PadirError("an autoregressive model ends its sentences itself: translate without target lengths")
        if isinstance(texts, str):
            raise PadirError("texts must be a sequence of sentences, got one string: put it into a list")
        if target_lengths is not None:
            if len(target_lengths) != len(texts):
                raise PadirError(f"{len(texts)} texts need as many target_lengths, got {len(target_lengths)}")
            wrong = [length for length in target_lengths if not 1 <= length <= self.card.config.max_length]
            if wrong:
                raise PadirError(f"target_lengths must be in 1 .. {self.card.config.max_length}, got {wrong[0]}")
        sources, truncated = self.source_tokens(texts, truncate)
        order = sorted((i for i, text in enumerate(texts) if text.strip()), key=lambda i: len(sources[i]))
        results: list[Translation] = [Translation("", 0.0, 1, 0, 0) for _ in texts]
        for begin in range(0, len(order), decoding.batch_size):
            PROGRAMS.make_room()
            numbers = order[begin : begin + decoding.batch_size]
            if causal:
                written = self.write([sources[i] for i in numbers], [first_number + i for i in numbers], decoding)
                batch = self.read(written, len(numbers))
            else:
                given = None if target_lengths is None else [target_lengths[i] for i in numbers]
                batch = self._batch(texts, numbers, first_number, sources, given, decoding, trace)
            for i, result in zip(numbers, batch, strict=True):
                results[i] = dataclasses.replace(result, truncated=i in truncated)
        return results

    def score(self, sources: Sequence[str], targets: Sequence[str], *, batch_size: int = 32, truncate: bool = False):
        """A causal model's log-probability of each given target, in one teacher-forced pass.

        Args:
          sources, targets: as many of the one as of the other.
          batch_size: pairs scored at once.
          truncate: cut what is too long instead of raising.

        Returns:
          A list of `Scored`.

        Raises:
          PadirError: the model is not causal, the numbers differ, or a text has more tokens than the model takes.
        """
        if not self.card.config.causal:
            raise PadirError(
                "the model refines drafts and gives targets no probability: score with an autoregressive one"
            )
        if len(sources) != len(targets):
            raise PadirError(f"{len(sources)} sources need as many targets, got {len(targets)}")
        source_tokens, _ = self.source_tokens(sources, truncate)
        target_tokens, _ = self._tokens(targets, truncate, "target")
        results = [Scored(0.0, 0)] * len(sources)
        order = sorted(range(len(sources)), key=lambda i: (len(source_tokens[i]), len(target_tokens[i])))
        for begin in range(0, len(order), batch_size):
            PROGRAMS.make_room()
            numbers = order[begin : begin + batch_size]
            sides = tuple(
                self.padded([side[i] for i in numbers], batch_size) for side in (source_tokens, target_tokens)
            )
            with self.on_devices():
                log_prob_BL = autoregressive.score(self.model, self.params, *self.place(sides))
            for i, log_prob in zip(numbers, on_host(log_prob_BL.sum(-1)).tolist(), strict=False):
                results[i] = Scored(log_prob, len(target_tokens[i]))
        return results

    def resolved(self, decoding: Decoding) -> Decoding:
        """A decoding with this model's own strategy and canvas where it leaves them open.

        Raises:
          PadirError: the options do not fit the model.
        """
        if decoding.shortlist is not None:
            decoding.shortlist.check(self.tokenizer)
        return resolve(decoding, self.card.config, self.card.corruption, self.card.strategy)

    def _kept(self, source_BS: np.ndarray, decoding: Decoding) -> np.ndarray | None:
        """The ids that a batch is written with; None: all."""
        return None if decoding.shortlist is None else decoding.shortlist.restrict(source_BS, self.card.ids)

    def predict_lengths(self, texts: Sequence[str], k: int = 1, batch_size: int = 32) -> list[list[int]]:
        """The k most likely target lengths of each sentence, most likely first, in tokens, EOS included.

        Sources that are longer than the model takes are cut.

        Raises:
          PadirError: the length head gives no length, or a single one and k is above 1.
        """
        sources, _ = self.source_tokens(texts, truncate=True)
        order = sorted(range(len(texts)), key=lambda i: len(sources[i]))
        results: list[list[int]] = [[] for _ in texts]
        for begin in range(0, len(order), batch_size):
            numbers = order[begin : begin + batch_size]
            batch = self.encode([sources[i] for i in numbers], batch_size)
            length_BK, _ = on_host(top_lengths(batch.encoded.length, k))
            for i, length_K in zip(numbers, length_BK.tolist(), strict=False):
                results[i] = length_K
        return results

    def source_tokens(self, texts: Sequence[str], truncate: bool) -> tuple[list[list[int]], set[int]]:
        """What the encoder reads: token lists with [LENGTH] and EOS; and which texts were cut.

        Raises:
          PadirError: a text has more tokens than the model takes, and `truncate` is not set.
        """
        tokens, truncated = self._tokens(texts, truncate, "text")
        prefix = [self.card.ids.length] if self.card.config.length_token else []
        return [[*prefix, *each] for each in tokens], truncated

    def _tokens(self, texts: Sequence[str], truncate: bool, what: str) -> tuple[list[list[int]], set[int]]:
        """Token lists with EOS, and which ones were cut."""
        limit = self.card.config.max_length - 1
        every, truncated = self.tokenizer.encode_batch(texts), set()
        for i, tokens in enumerate(every):
            if len(tokens) > limit:
                if not truncate:
                    raise PadirError(
                        f"{what} {i + 1} has {len(tokens)} tokens, the model takes {limit}: split it, or cut it with"
                        " truncate=True"
                    )
                truncated.add(i)
        return [[*tokens[:limit], EOS] for tokens in every], truncated

    def write(
        self, sources: list[list[int]], numbers: list[int], decoding: Decoding, limits: Sequence[int] | None = None
    ) -> Written:
        """What a causal model writes for a batch of `source_tokens`, on the host; B rows, those that fill it up last.

        Args:
          numbers: the sentences' numbers in the whole input, which random draws depend on.
          limits: most target tokens of each sentence, EOS included; None: by the length of the source.
        """
        source_BS, max_length = self.padded(sources, decoding.batch_size), self.card.config.max_length
        rows = source_BS.shape[0]
        if limits is None:
            (longest,) = autoregressive.length_limits([source_BS.shape[1]], max_length)
            limits = autoregressive.length_limits([len(source) for source in sources], max_length)
        else:
            longest = min(round_up(max(limits), BUCKET), max_length)
        limit_B = np.array([*limits, *[2] * (rows - len(sources))], np.int32)  # rows that fill it up end at once
        with self.on_devices():
            written, score_BN, passes_B = autoregressive.translate(
                self.model,
                self.params,
                *self.place((source_BS, in_the_input(numbers, rows), limit_B)),
                search=decoding.search,
                max_length=longest,
                seed=decoding.seed,
                kept_v=self._kept(source_BS, decoding),
            )
        return Written(*on_host((written.tokens_BNL, written.length_BN, score_BN, passes_B)))

    def read(self, written: Written, sentences: int) -> list[Translation]:
        """The best row of each sentence as text."""
        results = []
        for b, best in enumerate(written.score_BN.argmax(-1)[:sentences]):
            length = int(written.length_BN[b, best])
            text = self.tokenizer.decode(written.tokens_BNL[b, best, : length - 1].tolist())
            results.append(
                Translation(
                    text=one_line(text),
                    score=float(written.score_BN[b, best]),
                    length=length,
                    passes=int(written.passes_B[b]),
                    hypotheses=written.score_BN.shape[1],
                )
            )
        return results

    def _batch(
        self, texts: Sequence[str], numbers, first_number: int, sources, target_lengths, decoding: Decoding, trace: bool
    ) -> list[Translation]:
        """Translates one batch: the sentences at `numbers`."""
        encoded = self.encode([sources[i] for i in numbers], decoding.batch_size)
        tried = self.try_lengths(encoded, decoding, target_lengths)
        drafts = self.refine(encoded, tried, [first_number + i for i in numbers], decoding, trace=trace)
        return self.choose([str(texts[i]) for i in numbers], encoded, tried, drafts, decoding)

    def encode(self, sources: list[list[int]], batch_size: int) -> EncodedBatch:
        """The first stage of a batch, for models that refine drafts: what the encoder makes of `source_tokens`."""
        source_BS = self.padded(sources, batch_size)
        with self.on_devices():
            encoded, cross_kv = encode(self.model, self.params, self.place(source_BS))
        return EncodedBatch(source_BS, encoded, cross_kv, len(sources))

    def try_lengths(
        self, batch: EncodedBatch, decoding: Decoding, target_lengths: Sequence[int] | None = None
    ) -> list[list[tuple[int, int]]]:
        """The second: the hypotheses of each sentence, as (length, draw), most likely length first."""
        lengths: list[list[int]]
        if target_lengths is not None:
            lengths = [[length] for length in target_lengths]
        else:
            length_BK, _ = on_host(top_lengths(batch.encoded.length, decoding.lengths.top_k))
            lengths = length_BK[: batch.sentences].tolist()
        return [candidates(each, decoding.lengths, self.card.config.max_length) for each in lengths]

    def refine(
        self,
        batch: EncodedBatch,
        tried: list[list[tuple[int, int]]],
        numbers: list[int],
        decoding: Decoding,
        *,
        trace: bool = False,
    ) -> Drafts:
        """The third: every hypothesis' draft, refined, on the host; N rows a sentence.

        Args:
          numbers: the sentences' numbers in the whole input, from which their random drafts are made.
          decoding: `resolved`.
        """
        arguments, options = self._to_refine(batch, tried, numbers, decoding, trace)
        with self.on_devices():
            return on_host(refine_drafts(*arguments, **options))

    def refining_memory(
        self, batch: EncodedBatch, tried: list[list[tuple[int, int]]], numbers: list[int], decoding: Decoding
    ) -> int | None:
        """Bytes that XLA needs beside the arguments and results of `refine`; None where it does not say."""
        arguments, options = self._to_refine(batch, tried, numbers, decoding, trace=False)
        with self.on_devices():
            analysis = refine_drafts.lower(*arguments, **options).compile().memory_analysis()
        return getattr(analysis, "temp_size_in_bytes", None)

    def _to_refine(self, batch: EncodedBatch, tried, numbers: list[int], decoding: Decoding, trace: bool):
        """What `refine_drafts` is called with: (arguments, options)."""
        assert decoding.strategy is not None and decoding.canvas is not None
        rows = batch.encoded.segment_BS.shape[0]
        num_hypotheses = max(map(len, tried))
        # A sentence with fewer candidates repeats its first; so do the rows that fill the batch up.
        hypotheses = [row + [row[0]] * (num_hypotheses - len(row)) for row in tried]
        hypotheses += [hypotheses[0]] * (rows - len(tried))
        length_BN, draw_BN = np.moveaxis(np.array(hypotheses, np.int32), -1, 0)
        length = min(round_up(int(length_BN.max()), BUCKET), self.card.config.max_length)
        by_sentence = self.place((in_the_input(numbers, rows), length_BN, draw_BN))
        drafted = Tried(batch.cross_kv, batch.encoded.segment_BS, *by_sentence)
        options = {
            "max_target_length": length,
            "strategy": decoding.strategy,
            "corruption": decoding.canvas,
            "num_steps": decoding.num_steps,
            "seed": decoding.seed,
            "prune": None if trace else decoding.prune,
            # Groups of rows from all over the batch would make the devices exchange them at every step.
            "rows_at_once": rows_together(length) if self._mesh is None else None,
            # Room for some more steps, so that other numbers of them need no program of their own.
            "traced_steps": round_up(decoding.num_steps, _TRACE_ROOM) if trace else None,
            "kept_v": self._kept(batch.source_BS, decoding),
        }
        return (self.model, self.params, drafted), options

    def choose(
        self,
        texts: list[str],
        batch: EncodedBatch,
        tried: list[list[tuple[int, int]]],
        drafts: Drafts,
        decoding: Decoding,
    ) -> list[Translation]:
        """The last: the best hypothesis of each sentence, as text."""
        length_log_prob_BM = on_host(log_probs(batch.encoded.length))
        read = decoding.rerank.reads_text or decoding.n_best > 0
        kept_BN = drafts.kept_BN
        # Of each sentence the rows that are hypotheses of its own: others have filled the batch up.
        rows = [
            [b * kept_BN.shape[1] + n for n, number in enumerate(kept_BN[b]) if number < len(tried[b])]
            for b in range(len(tried))
        ]
        hypotheses = [
            [
                Hypothesis(
                    text=self.text(drafts.tokens_RL[row], drafts.free_RL[row], decoding) if read else "",
                    log_prob=float(drafts.log_prob_R[row]),
                    tokens=int(drafts.free_RL[row].sum()),
                    length_log_prob=None
                    if length_log_prob_BM is None
                    else float(length_log_prob_BM[b, drafts.length_R[row] - 1]),
                )
                for row in own
            ]
            for b, own in enumerate(rows)
        ]
        scores = decoding.rerank(texts, hypotheses, target_language=self.card.target_language)
        results = []
        for b, (candidate, score_N) in enumerate(zip(hypotheses, scores, strict=True)):
            ranked = sorted(range(len(candidate)), key=score_N.__getitem__, reverse=True)  # ties: the first
            best = self._translation(drafts, rows[b][ranked[0]], decoding)
            listed = ranked[: decoding.n_best]
            results.append(
                dataclasses.replace(
                    best,
                    score=score_N[ranked[0]],
                    hypotheses=len(tried[b]),
                    candidates=tuple((candidate[n].text, score_N[n]) for n in listed),
                    candidate_lengths=tuple(int(drafts.length_R[rows[b][n]]) for n in listed),
                )
            )
        return results

    def text(self, tokens_L: Int[np.ndarray, " L"], free_L: Bool[np.ndarray, " L"], decoding: Decoding) -> str:
        """What a draft says: its free tokens, without repeated ones where the decoding leaves them out."""
        drop = decoding.drop_repeats
        if drop is None:
            drop = isinstance(decoding.strategy, Padir)
        tokens = without_repeats(tokens_L, free_L, self.tokenizer.copied) if drop else tokens_L[free_L].tolist()
        text = self.tokenizer.decode(tokens)
        return one_line(text)

    def _translation(self, drafts: Drafts, row: int, decoding: Decoding) -> Translation:
        """One row of the drafts as a translation that has no score yet."""
        length = int(drafts.length_R[row])
        trace = None
        if drafts.trace_TRL is not None:
            trace = tuple(
                (
                    tuple(self.tokenizer.pieces[i] for i in tokens_L[:length]),
                    tuple(None if np.isnan(score) else float(score) for score in scores_L[:length]),
                )
                for tokens_L, scores_L in zip(
                    *(each_TRL[: decoding.num_steps + 1, row] for each_TRL in drafts.trace_TRL), strict=True
                )
            )
        return Translation(
            text=self.text(drafts.tokens_RL[row], drafts.free_RL[row], decoding),
            score=0.0,
            length=length,
            passes=int(drafts.passes_R[row]),
            trace=trace,
        )


@functools.lru_cache  # rows of a table share it
def rescorer(model_dir: str, brevity: float = 1.0) -> Rescore:
    """Rescoring by the autoregressive model of a directory, or by one that comes with padir.

    Raises:
      PadirError: it is no whole model directory, or the model is not autoregressive.
    """
    translator = Translator.load(model_dir)
    if not translator.card.config.causal:
        raise PadirError(f"{model_dir} holds no autoregressive model, which rescoring needs: give one, or own or mbr")
    # A hypothesis may have more pieces in that model's vocabulary than it takes.
    score_fn = functools.partial(translator.score, truncate=True)
    return Rescore(score_fn, brevity, model_dir, translator.card.target_language)
