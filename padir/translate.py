"""`Translator`: text in, text out.

1. Tokenise; sort sentences by length into batches whose shapes come from a small set.
2. Encode; take the most likely target lengths; lay out N drafts of each sentence.
3. Refine all drafts in one jitted loop; keep each sentence's best by `Decoding.rerank`.
4. Turn tokens into text, without repeated tokens.

A causal model writes from left to right (`padir.autoregressive`) in place of steps 2 and 3; it can also score given
targets.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from padir import autoregressive
from padir.canvas import Canvas, Corruption, Strategy, draft, veil
from padir.checkpoint import ModelCard, load_model
from padir.errors import PadirError
from padir.length import LengthSearch, candidates, log_probs, top_lengths
from padir.model import ModelConfig, Transformer
from padir.pretrained import DEFAULT
from padir.refine import LogitsFn, refine
from padir.rerank import Hypothesis, OwnScore, Rerank, Rescore
from padir.searches import Beam, Search
from padir.strategies import Padir, check_strategy
from padir.tokenizer import Tokenizer
from padir.tokens import EOS, pad_rows, round_up

BUCKET = 8  # lengths are rounded up to it


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How sentences are translated.

    Attributes:
      num_steps: decoder passes at most, T.
      strategy: None takes the model's own.
      canvas: what drafts are made of; None takes the corruption that the model was trained with.
      lengths: which lengths are tried, and how many drafts of each.
      drop_repeats: leave out a token that equals its left neighbour (the paper's last clean-up, section L.2); None:
        only for the strategy "padir".
      search: of a causal model, which all of the above is not for; nor is this for others.
      batch_size: sentences decoded at once.
      seed: of the random drafts, or of sampling.
      rerank: how one of the hypotheses is chosen; an autoregressive model's search does so itself.
      n_best: how many of them a `Translation` lists, best first; 0 lists none.

    Raises:
      PadirError: a number is too small, or a field is of another kind.
    """

    num_steps: int = 4
    strategy: Strategy | None = None
    canvas: Corruption | None = None
    lengths: LengthSearch = LengthSearch()
    drop_repeats: bool | None = None
    search: Search = Beam()
    batch_size: int = 32
    seed: int = 0
    rerank: Rerank = OwnScore()
    n_best: int = 0

    def __post_init__(self):
        if self.num_steps < 1:
            raise PadirError(f"num_steps must be at least 1, got {self.num_steps}: use 1 for one-shot decoding")
        if self.batch_size < 1:
            raise PadirError(f"batch_size must be at least 1, got {self.batch_size}")
        if not 0 <= self.seed < 2**31:
            raise PadirError(f"seed must be in 0 .. 2**31 - 1, got {self.seed}")
        if self.n_best < 0:
            raise PadirError(f"n_best must be at least 0, got {self.n_best}")
        kinds = {"strategy": Strategy, "canvas": Corruption, "search": Search, "rerank": Rerank}
        for name, kind in (kinds | {"lengths": LengthSearch}).items():
            value = getattr(self, name)
            optional = value is None and name in ("strategy", "canvas")
            if not optional and (isinstance(value, type) or not isinstance(value, kind)):
                raise PadirError(f"{name} must be a {kind.__name__}, got {value!r}: give an instance (in gin @Name())")

    def filled(self, corruption: Corruption, strategy: Strategy) -> Decoding:
        """The same with a model's own canvas and strategy where it leaves them open."""
        return dataclasses.replace(self, strategy=self.strategy or strategy, canvas=(self.canvas or corruption).full())

    def check(self, config: ModelConfig) -> None:
        """Compares what differs from the defaults with the kind of the model.

        Raises:
          PadirError: it is an option of the other kind.
        """
        for name in OF_REFINING if config.causal else OF_CAUSAL:
            if getattr(self, name) != getattr(Decoding, name):
                raise foreign_option(name, config.causal)


OF_CAUSAL = ("search",)  # fields of `Decoding` that mean nothing to the other kind of model
OF_REFINING = ("num_steps", "strategy", "canvas", "lengths", "drop_repeats", "rerank", "n_best")


def foreign_option(name: str, causal: bool) -> PadirError:
    """The error that says why a model of a kind has no such option."""
    if causal:
        return PadirError(
            f"the model is autoregressive: it writes each sentence once, from left to right, and refines no draft, so"
            f" that {name} means nothing to it; choose a search (--beam, --length_penalty or --sample) instead"
        )
    return PadirError(
        f"the model refines drafts: {name} is for autoregressive models, which write from left to right; choose"
        " num_steps, strategy and lengths instead"
    )


def resolve(
    decoding: Decoding, config: ModelConfig, corruption: Corruption | None, strategy: Strategy | None
) -> Decoding:
    """A decoding with a model's own strategy and canvas where it leaves them open.

    Args:
      corruption, strategy: those that the model was trained with; None for a causal model.

    Raises:
      PadirError: the options do not fit the model.
    """
    decoding.check(config)
    if config.causal:
        return decoding
    assert corruption is not None and strategy is not None
    decoding = decoding.filled(corruption, strategy)
    assert decoding.canvas is not None and decoding.strategy is not None
    check_strategy(decoding.strategy, canvas=decoding.canvas, trained=corruption, config=config)
    if decoding.lengths.draws > 1 and decoding.canvas.deterministic:
        raise PadirError(
            f"draws must be 1 for a canvas without randomness, got {decoding.lengths.draws}: all would be equal, try"
            " more lengths instead"
        )
    return decoding


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
    """

    text: str
    score: float
    length: int
    passes: int
    hypotheses: int = 1
    trace: tuple[tuple[tuple[str, ...], tuple[float | None, ...]], ...] | None = None
    truncated: bool = False
    candidates: tuple[tuple[str, float], ...] = ()


class Scored(NamedTuple):
    """The log-probability of a given target, EOS included, and its number of tokens."""

    log_prob: float
    tokens: int


class Translator:
    """A loaded model.

    >>> translator = Translator.load("runs/toy")  # doctest: +SKIP
    >>> translator.translate(["Der Hund schläft ."], num_steps=4)[0].text  # doctest: +SKIP
    'The dog is sleeping.'
    """

    def __init__(self, params: Any, card: ModelCard, tokenizer: Tokenizer):
        self.params, self.card, self.tokenizer = params, card, tokenizer
        self.model = Transformer(card.config, card.ids)

    @classmethod
    def load(
        cls, path: str | Path = DEFAULT, *, corruption: Corruption | None = None, strategy: Strategy | None = None
    ) -> Translator:
        """Loads a model directory, or a model that comes with padir (`padir.pretrained`).

        Args:
          path: the directory, or such a model's name.
          corruption, strategy: in place of the model's own, which must be given where it was trained with a class that
            is not padir's.

        Raises:
          PadirError: it is missing, half-written or damaged.
        """
        params, card, tokenizer = load_model(path, corruption=corruption, strategy=strategy)
        return cls(jax.device_put(params), card, tokenizer)

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
        """Translates sentences, each on its own.

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
            numbers = order[begin : begin + decoding.batch_size]
            if causal:
                batch = self._written(numbers, first_number, sources, decoding)
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
            numbers = order[begin : begin + batch_size]
            source_BS, target_BL = (
                padded([side[i] for i in numbers], batch_size) for side in (source_tokens, target_tokens)
            )
            log_prob_BL = autoregressive.score(self.model, self.params, source_BS, target_BL)
            for i, log_prob in zip(numbers, np.asarray(log_prob_BL.sum(-1)).tolist(), strict=False):
                results[i] = Scored(log_prob, len(target_tokens[i]))
        return results

    def resolved(self, decoding: Decoding) -> Decoding:
        """A decoding with this model's own strategy and canvas where it leaves them open.

        Raises:
          PadirError: the options do not fit the model.
        """
        return resolve(decoding, self.card.config, self.card.corruption, self.card.strategy)

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
            encoded, _ = encode(self.model, self.params, padded([sources[i] for i in numbers], batch_size))
            length_BK, _ = top_lengths(encoded.length, k)
            for i, length_K in zip(numbers, np.asarray(length_BK).tolist(), strict=False):
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

    def _written(self, numbers, first_number: int, sources, decoding: Decoding) -> list[Translation]:
        """Translates one batch from left to right."""
        source_BS, max_length = padded([sources[i] for i in numbers], decoding.batch_size), self.card.config.max_length
        rows = source_BS.shape[0]
        (longest,) = autoregressive.length_limits([source_BS.shape[1]], max_length)
        limits = autoregressive.length_limits([len(sources[i]) for i in numbers], max_length)
        written, score_BN, passes_B = autoregressive.translate(
            self.model,
            self.params,
            source_BS,
            in_the_input(numbers, first_number, rows),
            np.array(limits + [2] * (rows - len(numbers)), np.int32),  # rows that fill the batch up end at once
            search=decoding.search,
            max_length=longest,
            seed=decoding.seed,
        )
        tokens_BNL, length_BN, score_BN, passes_B = jax.device_get(
            (written.tokens_BNL, written.length_BN, score_BN, passes_B)
        )
        results = []
        for b, best in enumerate(score_BN.argmax(-1)[: len(numbers)]):
            length = int(length_BN[b, best])
            text = self.tokenizer.decode(tokens_BNL[b, best, : length - 1].tolist())
            results.append(
                Translation(
                    text=_one_line(text),
                    score=float(score_BN[b, best]),
                    length=length,
                    passes=int(passes_B[b]),
                    hypotheses=decoding.search.size,
                )
            )
        return results

    def _batch(
        self, texts: Sequence[str], numbers, first_number: int, sources, target_lengths, decoding: Decoding, trace: bool
    ) -> list[Translation]:
        """Translates one batch: the sentences at `numbers`."""
        max_length = self.card.config.max_length
        source_BS = padded([sources[i] for i in numbers], decoding.batch_size)
        rows = source_BS.shape[0]
        encoded, cross_kv = encode(self.model, self.params, source_BS)
        if target_lengths is not None:
            tried = [candidates([length], decoding.lengths, max_length) for length in target_lengths]
        else:
            length_BK, _ = top_lengths(encoded.length, decoding.lengths.top_k)
            tried = [
                candidates(row, decoding.lengths, max_length) for row in np.asarray(length_BK)[: len(numbers)].tolist()
            ]
        num_hypotheses = max(map(len, tried))
        # A sentence with fewer candidates repeats its first; so do the rows that fill the batch up.
        tried_BN = [row + [row[0]] * (num_hypotheses - len(row)) for row in tried]
        tried_BN += [tried_BN[0]] * (rows - len(numbers))
        length_BN, draw_BN = np.moveaxis(np.array(tried_BN, np.int32), -1, 0)
        assert decoding.strategy is not None and decoding.canvas is not None
        tried_of = Tried(cross_kv, encoded.segment_BS, in_the_input(numbers, first_number, rows), length_BN, draw_BN)
        drafts = _refine(
            self.model,
            self.params,
            tried_of,
            max_target_length=min(round_up(int(length_BN.max()), BUCKET), max_length),
            strategy=decoding.strategy,
            corruption=decoding.canvas,
            num_steps=decoding.num_steps,
            seed=decoding.seed,
            traced_steps=decoding.num_steps if trace else None,
        )
        drafts = jax.device_get(drafts)
        length_log_prob_BM = jax.device_get(log_probs(encoded.length))
        read = decoding.rerank.reads_text or decoding.n_best > 0
        hypotheses = [
            [
                Hypothesis(
                    text=self._text(drafts, row, decoding) if read else "",
                    log_prob=float(drafts.log_prob_R[row]),
                    tokens=int(drafts.free_RL[row].sum()),
                    length_log_prob=None if length_log_prob_BM is None else float(length_log_prob_BM[b, length - 1]),
                )
                for row, (length, _) in enumerate(tried[b], b * num_hypotheses)
            ]
            for b in range(len(tried))
        ]
        read_texts = [str(texts[i]) for i in numbers]
        scores = decoding.rerank(read_texts, hypotheses, target_language=self.card.target_language)
        results = []
        for b, (candidate, score_N) in enumerate(zip(hypotheses, scores, strict=True)):
            ranked = sorted(range(len(candidate)), key=score_N.__getitem__, reverse=True)  # ties: the first
            best = self._translation(drafts, b * num_hypotheses + ranked[0], decoding)
            n_best = tuple((candidate[n].text, score_N[n]) for n in ranked[: decoding.n_best])
            results.append(
                dataclasses.replace(best, score=score_N[ranked[0]], hypotheses=len(candidate), candidates=n_best)
            )
        return results

    def _text(self, drafts: _Drafts, row: int, decoding: Decoding) -> str:
        """What one row of the drafts says."""
        tokens_L, free_L = drafts.tokens_RL[row], drafts.free_RL[row]
        drop = decoding.drop_repeats
        if drop is None:
            drop = isinstance(decoding.strategy, Padir)
        text = self.tokenizer.decode(without_repeats(tokens_L, free_L) if drop else tokens_L[free_L].tolist())
        return _one_line(text)

    def _translation(self, drafts: _Drafts, row: int, decoding: Decoding) -> Translation:
        """One row of the drafts as a translation that has no score yet."""
        length = int(drafts.length_R[row])
        trace = None
        if drafts.trace_TRL is not None:
            trace = tuple(
                (
                    tuple(self.tokenizer.pieces[i] for i in tokens_L[:length]),
                    tuple(None if np.isnan(score) else float(score) for score in scores_L[:length]),
                )
                for tokens_L, scores_L in zip(*(each_TRL[:, row] for each_TRL in drafts.trace_TRL), strict=True)
            )
        return Translation(
            text=self._text(drafts, row, decoding),
            score=0.0,
            length=length,
            passes=int(drafts.passes_R[row]),
            trace=trace,
        )


class Tried(NamedTuple):
    """Encoded sentences and the N hypotheses that are tried of each.

    Attributes:
      cross_kv, source_segment_BS: of the encoded sources, one row a sentence.
      number_B: of each sentence; with the seed, its length and its draw it makes a hypothesis' key.
      length_BN, draw_BN: of each hypothesis.
    """

    cross_kv: Any
    source_segment_BS: Any
    number_B: Any
    length_BN: Any
    draw_BN: Any


class _Drafts(NamedTuple):
    """Refined drafts, R = B * N rows, sentence-major, less what only the loop needs.

    log_prob_R is the sum of a row's log-probabilities; trace_TRL holds tokens and log-probabilities, or is None.
    """

    tokens_RL: Any
    free_RL: Any
    length_R: Any
    log_prob_R: Any
    passes_R: Any
    trace_TRL: tuple[Any, Any] | None


def in_the_input(numbers: list[int], first_number: int, rows: int) -> np.ndarray:
    """The sentences' numbers in the whole input; 0, as any, for rows that fill the batch up."""
    return np.array([*numbers, *[0] * (rows - len(numbers))], np.uint32) + np.uint32(first_number)


def _one_line(text: str) -> str:
    return text.replace("\r", " ")  # most readers of text files take it for the end of a line


def without_repeats(tokens_L: np.ndarray, free_L: np.ndarray) -> list[int]:
    """The free tokens, less those that equal their left neighbour (the paper's section L.2).

    >>> without_repeats(np.array([7, 7, 8, 7, 1, 0]), np.array([True, True, True, True, False, False]))
    [7, 8, 7]
    """
    tokens = tokens_L[free_L]
    return tokens[np.concatenate([[True], tokens[1:] != tokens[:-1]])[: len(tokens)]].tolist()


def padded(sources: list[list[int]], batch_size: int) -> np.ndarray:
    """Token lists as an array of one of few shapes, so that few programs are compiled."""
    rows = min(batch_size, 1 << (len(sources) - 1).bit_length())
    return pad_rows(sources, round_up(max(map(len, sources)), BUCKET), rows)


@functools.partial(jax.jit, static_argnums=0)
def encode(model: Transformer, params, source_BS):
    """The encoder's output for a batch of sources, and each decoder layer's keys and values of it."""
    segment_BS = (source_BS > 0).astype(jnp.int32)
    bound = model.bind({"params": params})
    encoded = bound.encode(source_BS, segment_BS)
    return encoded, bound.cross_kv(encoded.memory_BSD)


@functools.partial(
    jax.jit, static_argnums=0, static_argnames=("max_target_length", "strategy", "corruption", "traced_steps")
)
def _refine(
    model: Transformer,
    params,
    tried: Tried,
    *,
    max_target_length: int,
    strategy: Strategy,
    corruption: Corruption,
    num_steps,
    seed,
    traced_steps: int | None,
) -> _Drafts:
    """Refines every draft of a batch. A trace has a shape, so its number of steps is static; `num_steps` is not."""
    key_R, canvas, logits_fn = lay_out(
        model, params, tried, max_target_length=max_target_length, corruption=corruption, seed=seed
    )
    refined = refine(
        key_R, canvas, logits_fn, strategy, num_steps=traced_steps or num_steps, trace=traced_steps is not None
    )
    log_prob_R = (refined.canvas.score_BL * canvas.free_BL).sum(-1)
    traced = None
    if refined.tokens_TBL is not None and refined.scores_TBL is not None:
        traced = (refined.tokens_TBL, refined.scores_TBL)
    return _Drafts(refined.tokens_BL, canvas.free_BL, tried.length_BN.reshape(-1), log_prob_R, refined.passes_B, traced)


def lay_out(
    model: Transformer, params, tried: Tried, *, max_target_length: int, corruption: Corruption, seed
) -> tuple[Any, Canvas, LogitsFn]:
    """The drafts of a batch before the first step, rows R = B * N sentence-major: (key_R, canvas, decoder)."""
    sentence_B = jax.vmap(lambda n: jax.random.fold_in(jax.random.key(seed), n))(tried.number_B)
    length_R = tried.length_BN.reshape(-1)
    # A hypothesis is its length and its draw: a key of these does not change when other candidates come or go.
    fold = jax.vmap(lambda key, length, draw: jax.random.fold_in(jax.random.fold_in(key, length), draw))
    key_R = fold(jnp.repeat(sentence_B, tried.length_BN.shape[1]), length_R, tried.draw_BN.reshape(-1))
    canvas = draft(key_R, length_R, max_target_length, corruption, model.ids)
    if model.config.decontextualised:
        canvas = veil(canvas, canvas.free_BL)

    def logits_fn(tokens_BL, visible_BLL=None):
        return model.bind({"params": params}).decode(
            tokens_BL, canvas.segment_BL, tried.cross_kv, tried.source_segment_BS, visible_BLL=visible_BLL
        )

    return key_R, canvas, logits_fn


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
