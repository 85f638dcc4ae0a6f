"""The contract of a `Writer`, an engine that gives hypotheses for batches of tokenised sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from padir.decoding.hypothesis import Hypothesis, SourceSentence
from padir.decoding.loaded import EncodedBatch, LoadedModel
from padir.decoding.options import Decoding


class Shapes(NamedTuple):
    """Shapes that batches are padded to, so that few programs are compiled.

    Attributes:
      lengths: allowed row lengths; () allows those of `padded_length`. Rows of drafts are at least as long as those of
        sources.
      counts: allowed numbers of drafts of a sentence; () allows all.
    """

    lengths: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()


class Written(NamedTuple):
    """Hypotheses of a batch.

    Attributes:
      hypotheses: at least one for each sentence; of equal scores, the first wins.
      encoded: the encoder's output, if the writer has it: a rule may read it again. It is of exactly these sentences in
        their order, by the model that the writer was made with.
      searched: number of rows of a search, finished or not; None if every row is a hypothesis.
    """

    hypotheses: list[list[Hypothesis]]
    encoded: EncodedBatch | None = None
    searched: int | None = None


@runtime_checkable
class Writer(Protocol):
    """Protocol of engines that write translations of tokenised sentences, such as `Refiner` and `Searcher`.

    What a sentence gets may depend on the sentence and the writer's options alone, not on the batch, except with
    `Decoding.shortlist`. On a CPU two threads may call `write` of padir's own writers at once. A writer around a
    `Refiner` has traces, but `Translator.steps` refuses it. The options `n_best` and `rerank` are not
    the writer's: it gives all hypotheses that it has.
    """

    @property
    def most_hypotheses(self) -> int:
        """The largest number of hypotheses of a sentence without a template."""
        ...

    def write(self, sources: Sequence[SourceSentence]) -> Written:
        """Writes hypotheses for a batch of sentences.

        Raises:
          PadirError: the model's output is not finite, or a source asks for what the engine cannot do.
        """
        ...


@runtime_checkable
class MakeWriter(Protocol):
    """Protocol of functions that make a writer from a model, options that were resolved for it, and wishes.

    Raises:
      PadirError: the engine has not what the options ask for.
    """

    def __call__(self, loaded: LoadedModel, decoding: Decoding, *, trace: bool, shapes: Shapes) -> Writer: ...
