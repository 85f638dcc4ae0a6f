"""`SentenceTranslator`, which takes sentences in the form that the model reads through the steps of decoding.

1. Tokenise; sort the sentences by length into batches whose shapes come from a small set.
2. A `Writer` gives hypotheses for each batch.
3. `padir.decoding.reading` ranks them and makes text of the best.
"""

from __future__ import annotations

import collections
import concurrent.futures
import copy
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import jax

from padir import checks
from padir.decoding.alignment import links
from padir.decoding.bigrams import Bigrams
from padir.decoding.fallback import Fallback, with_fallback
from padir.decoding.fit import default_decoding, mode_of, resolve
from padir.decoding.hypothesis import SourceSentence
from padir.decoding.loaded import LoadedModel
from padir.decoding.options import Decoding
from padir.decoding.program_cache import check_process
from padir.decoding.reading import best_translations
from padir.decoding.refiner import Refiner
from padir.decoding.searcher import Searcher
from padir.decoding.templates import Template
from padir.decoding.translation import EMPTY_LINE, Translation
from padir.decoding.writer import MakeWriter, Shapes, Writer, Written
from padir.errors import PadirError
from padir.models.directory import ModelCard
from padir.models.transformer import Transformer
from padir.text.ids import sorted_batches
from padir.text.tokenizer import Tokenizer

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True)
class Request:
    """Wishes of one call beside the options of decoding.

    What is written again for lost spans or terms (`padir.constrained`) has a request of its own.

    Attributes:
      target_lengths: lengths of all translations in tokens, EOS included; None to predict them.
      templates: fixed tokens and gaps of each translation; None for none.
      truncate: cut sources that are too long instead of raising an error.
      trace: keep the draft and every step of the best hypothesis.
      progress: gets the number of sentences translated since its last call, after each batch.
    """

    target_lengths: Sequence[int] | None = None
    templates: Sequence[Template] | None = None
    truncate: bool = False
    trace: bool = False
    progress: Callable[[int], None] = lambda count: None


def make_writer(loaded: LoadedModel, decoding: Decoding, *, trace: bool, shapes: Shapes) -> Writer:
    """Padir's own writer for the mode of the options.

    Raises:
      PadirError: a trace of writing from left to right.
    """
    if decoding.mode == "refine":
        refiner = Refiner(loaded, decoding, trace, shapes)
        return with_fallback(refiner) if decoding.falls_back else refiner
    if trace:
        raise _no_steps()
    return Searcher(loaded, decoding, shapes)


def _no_steps() -> PadirError:
    what = "only refined drafts have steps to show, because a search writes every token once"
    return PadirError(what, remedy="choose the mode refine, or a model that refines drafts")


def one_ahead(function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
    """Maps a function over items, in order; two threads work on the next ones while the caller reads a result.

    If settings of `jax.config` hold in the caller's thread alone (`with jax.default_device(..)`), it does the work.
    """
    if len(items) < 2:
        yield from map(function, items)
        return
    pool = concurrent.futures.ThreadPoolExecutor(2)
    try:
        if pool.submit(lambda: jax.config.values).result() != jax.config.values:
            yield from map(function, items)
            return
        waiting = collections.deque(pool.submit(function, item) for item in items[:2])
        for item in items[2:]:
            result = waiting.popleft().result()
            waiting.append(pool.submit(function, item))
            yield result
        for each in waiting:
            yield each.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _of_cut_source(translation: Translation) -> Translation:
    candidates = translation.candidates and tuple(map(_of_cut_source, translation.candidates))
    return dataclasses.replace(translation, truncated=True, candidates=candidates)


@dataclasses.dataclass(frozen=True, eq=False)
class BatchTranslator:
    """A writer beside the resolved options that made it: takes the sentences of a batch to translations."""

    loaded: LoadedModel
    decoding: Decoding
    writer: Writer
    shapes: Shapes

    def __call__(self, sources: Sequence[SourceSentence]) -> list[Translation]:
        return self.read(sources, self.writer.write(sources))

    def read(self, sources: Sequence[SourceSentence], written: Written) -> list[Translation]:
        """Ranks the hypotheses of each sentence, and makes text of the best."""
        return best_translations(self.loaded, sources, written, self.decoding, self.shapes)


_log = logging.getLogger("padir")
MapBatches = Callable[..., Iterable[list[Translation]]]
Own = TypeVar("Own", bound="SentenceTranslator")


class SentenceTranslator:
    """A loaded model that translates sentences; if its parameters lie on several devices, the devices share each batch.

    Attributes:
      loaded: the model itself, with its parameters, card and tokenizer.
      decoding: the model's own options.
      bigrams: the model's table of bigrams; None for none.
      shapes: shapes that batches are padded to.
    """

    def __init__(self, params: Any, card: ModelCard, tokenizer: Tokenizer, bigrams: Bigrams | None = None):
        self.decoding = default_decoding(card)
        if self.decoding.fusion is not None and bigrams is None:
            _log.warning("the model's card asks for fusion, but the model has no table of bigrams: it is left out")
            self.decoding = self.decoding.without("fusion")
        self.bigrams = bigrams
        self.loaded = LoadedModel(params, card, tokenizer, bigrams)
        self.shapes = Shapes()
        self._make_writer: MakeWriter = make_writer
        self._map: MapBatches | None = None

    @property
    def params(self) -> Any:
        return self.loaded.params

    @property
    def card(self) -> ModelCard:
        return self.loaded.card

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    @property
    def model(self) -> Transformer:
        return self.loaded.model

    def with_writer(self: Own, make: MakeWriter, at_once: MapBatches | None = None) -> Own:
        """Gives this translator with another engine.

        Args:
          make: makes the writer of each call. With `n_best` it is called twice, first to read `most_hypotheses` only.
          at_once: maps a function over the batches of a call, in order, such as `ThreadPoolExecutor.map`. Its
            threads also call rules of one's own. None keeps this translator's; without any, writers and rules of one's
            own are called in the caller's thread.
        """
        if not callable(make):
            raise PadirError("with_writer", "given a function that makes a writer", make)
        checks.takes("the function of with_writer", make, "loaded, decoding, *, trace, shapes")
        made = copy.copy(self)
        made._make_writer = make
        made._map = at_once or self._map
        return made

    def with_padirs_writer(self: Own) -> Own:
        """Gives this translator with padir's own engine, which gets batches in the same way (`with_writer`)."""
        return self.with_writer(make_writer)

    def with_shapes(self: Own, shapes: Shapes) -> Own:
        """Gives this translator with batches of other shapes."""
        made = copy.copy(self)
        made.shapes = shapes
        return made

    def translate_sentences(
        self,
        sentences: Sequence[str],
        decoding: Decoding,
        request: Request = Request(),  # noqa: B008
    ) -> list[Translation]:
        """Translates sentences that are in the form of the model's training text (`LoadedModel.normalised`).

        A sentence without a character that is no blank gets an empty translation.

        Raises:
          PadirError: a source has more tokens than the model takes, or the options do not fit the model.
        """
        at_once = self._map or (one_ahead if self._may_take_two(decoding) else map)
        decoding = self.resolved(decoding)
        translate_batch = self.batch_translator(decoding, trace=request.trace)
        tokens, truncated = self.loaded.source_tokens(sentences, request.truncate)
        sources = [
            SourceSentence(
                text,
                tokens[i],
                None if request.target_lengths is None else request.target_lengths[i],
                None if request.templates is None else request.templates[i],
            )
            for i, text in enumerate(sentences)
        ]
        results = [EMPTY_LINE] * len(sources)
        filled = (i for i, text in enumerate(sentences) if text.strip())
        batches = [*sorted_batches(filled, decoding.batch_size, lambda i: len(tokens[i]))]
        made = at_once(translate_batch, [[sources[i] for i in places] for places in batches])
        for places, translations in zip(batches, made, strict=True):
            for i, translation in zip(places, translations, strict=True):
                results[i] = _of_cut_source(translation) if i in truncated else translation
            request.progress(len(places))
        if empty := len(sentences) - sum(map(len, batches)):
            request.progress(empty)
        return results

    def batch_translator(self, decoding: Decoding, *, trace: bool = False) -> BatchTranslator:
        """The function that translates a batch of sentences with resolved options; `trace` is as in `writer`.

        It may be called by two threads.
        """
        return BatchTranslator(self.side(decoding), decoding, self.writer(decoding, trace=trace), self.shapes)

    def _may_take_two(self, decoding: Decoding) -> bool:
        """True if two batches may be under way at once, in other threads than the caller's.

        Several devices need one order of programs, and two batches at once more of an accelerator's memory.
        """
        single = self.loaded.mesh is None and self.loaded.platform == "cpu"
        return single and not self.has_other_engine and isinstance(decoding.rerank, str)

    @property
    def has_other_engine(self) -> bool:
        """True if `with_writer` gave another engine than padir's."""
        return self._make_writer is not make_writer

    def links(self, pairs: Sequence[tuple[str, str]], batch_size: int) -> list[list[int]]:
        """Links between the units of sentence pairs (`padir.decoding.alignment.links`)."""
        return links(self.loaded, pairs, batch_size, self.shapes.lengths)

    def writer(self, decoding: Decoding, *, trace: bool = False) -> Writer:
        """The writer for resolved options; `trace` keeps every step of the drafts (`make_writer`)."""
        check_process()
        writer = self._make_writer(self.side(decoding), decoding, trace=trace, shapes=self.shapes)
        checks.instance("what the function of with_writer gives", writer, Writer)
        checks.takes(f"{type(writer).__name__}.write", writer.write, "sources")
        checks.counts(1, most_hypotheses=writer.most_hypotheses)
        return writer

    def refiner(self, decoding: Decoding, *, trace: bool = False) -> Refiner:
        """The writer for resolved options of the mode "refine".

        Raises:
          PadirError: the options are of another mode, or another engine writes.
        """
        writer = self.writer(decoding, trace=trace)
        if isinstance(writer, Fallback):
            writer = writer.first
        if not isinstance(writer, Refiner):
            if decoding.mode == "refine":
                what = "only padir's own engine shows its steps"
                raise PadirError(what, got=type(writer).__name__, remedy="leave with_writer out")
            raise _no_steps()
        return writer

    def side(self, decoding: Decoding) -> LoadedModel:
        """The model that decodes with these options: the side for their mode, in their precision."""
        return self.loaded.side(mode_of(decoding, self.card.config), decoding.precision)

    def refines(self, decoding: Decoding) -> bool:
        """True if the model refines drafts with these options; False if it writes from left to right."""
        return mode_of(decoding, self.card.config) == "refine"

    def resolved(self, decoding: Decoding) -> Decoding:
        """The options with this model's own mode, strategy and canvas for None; refuses options that do not fit."""
        if decoding.shortlist is not None:
            decoding.shortlist.check(self.tokenizer)
        if decoding.fusion is not None and self.bigrams is None:
            what = "fusion needs a table of bigrams, and the model has none"
            raise PadirError(what, remedy="make a model with one (`padir bigrams`), or leave fusion out")
        return resolve(decoding, self.card.config, self.card.corruption, self.card.strategy)
