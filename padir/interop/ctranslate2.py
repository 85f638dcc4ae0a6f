"""Runs autoregressive models in CTranslate2, which searches several times as fast as padir does on a CPU.

In float32 padir and CTranslate2 write the same tokens by greedy search. `Searcher` searches for translations of token
lists; `CTranslate2Translator` translates text, and makes a distillation of hours one of minutes.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from padir import checks
from padir.decoding.autoregressive import length_limits
from padir.decoding.options import Decoding
from padir.decoding.search import Beam, Greedy, Search
from padir.decoding.shortlist import Shortlist
from padir.decoding.text import one_line
from padir.decoding.translation import EMPTY_LINE, Translation
from padir.decoding.translator import Translator
from padir.errors import PadirError
from padir.interop.ctranslate2_conversion import convert, import_ctranslate2
from padir.text.ids import EOS
from padir.text.tokenizer import Tokenizer


def check_search(search: Search) -> None:
    """Raises PadirError if the search draws tokens."""
    if not isinstance(search, Beam | Greedy):
        raise PadirError(f"CTranslate2 runs greedy and beam search here, got {search}")


@dataclasses.dataclass(frozen=True)
class Searcher:
    """A converted model in CTranslate2.

    Attributes:
      engine: a `ctranslate2.Translator`.
      tokenizer: the model's tokenizer.
      banned: ids that no translation has.
      listed: True if each batch has a vocabulary of its own, by the model's vocabulary map.
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
    ) -> Searcher:
        """Converts a model.

        Args:
          compute_type: "float32" or "int8".
          workers: number of batches at a time.
          threads: number of threads that share a batch.
          shortlist: restricts each batch to the ids on its list; unlike padir, CTranslate2 adds none to fill up a size,
            and uses the list however long it is.

        Raises:
          PadirError: CTranslate2 is not installed or cannot run the model, the compute type is unknown, or the
            shortlist is of another vocabulary.
        """
        with tempfile.TemporaryDirectory() as folder:
            convert(translator, folder, compute_type, shortlist)
            engine = import_ctranslate2().Translator(
                folder, device="cpu", compute_type=compute_type, inter_threads=workers, intra_threads=threads
            )
        banned = tuple(i for i in translator.card.ids.special if i != EOS)
        return Searcher(engine, translator.tokenizer, banned, shortlist is not None)

    @property
    def compute_type(self) -> str:
        return self.engine.compute_type

    def write(
        self,
        sources: Sequence[list[int]],
        search: Beam | Greedy,
        *,
        longest: int,
        shortest: int = 2,
        batch_size: int = 0,
        scores: bool = True,
    ) -> Any:
        """Searches for the best translation of each source; returns CTranslate2's results.

        Args:
          sources: token lists with EOS.
          longest, shortest: limits of the number of tokens, with EOS, for all sources.
          batch_size: sources in a batch, sorted by length; 0: all of them, in their order.
          scores: compute log-probabilities, which greedy search does not need.
        """
        return self.engine.translate_batch(
            [list(map(str, tokens)) for tokens in sources],
            max_batch_size=batch_size,
            max_input_length=0,  # no limit beside the model's
            beam_size=search.size,
            length_penalty=getattr(search, "alpha", 0.0),
            max_decoding_length=longest - 1,  # EOS does not count
            min_decoding_length=shortest - 1,
            suppress_sequences=[[str(i)] for i in self.banned],
            return_scores=scores,
            use_vmap=self.listed,
        )

    def translation(self, result: Any, search: Beam | Greedy, limit: int) -> Translation:
        """Turns one of CTranslate2's results into text.

        Args:
          limit: maximum number of tokens, EOS included; later tokens are left out.
        """
        ids = [int(word) for word in result.hypotheses[0]][: limit - 1]
        length = len(ids) + 1
        score = result.scores[0] if result.scores else float("nan")
        score = score / length if isinstance(search, Greedy) else score
        return Translation(one_line(self.tokenizer.decode(ids)), score, length, length, search.size)


class CTranslate2Translator(Translator):
    """A translator whose `translate` runs in CTranslate2, with a worker on each core; the rest is padir's.

    `name` is CTranslate2 with its version and the precision.
    """

    def __init__(self, translator: Translator, compute_type: str):
        super().__init__(translator.params, translator.card, translator.tokenizer)
        self.searcher = Searcher.of(translator, compute_type, workers=os.cpu_count() or 1)
        self.name = f"ctranslate2 {import_ctranslate2().__version__}, {compute_type}"

    def translate(
        self,
        texts: Sequence[str],
        decoding: Decoding | None = None,
        *,
        target_lengths: Sequence[int] | None = None,
        truncate: bool = False,
        trace: bool = False,
        progress: Callable[[int], None] = lambda count: None,
        **changes: Any,
    ) -> list[Translation]:
        """Translates sentences by greedy or beam search; `padir.Translator.translate` says what the arguments mean.

        CTranslate2's beam search divides by length^alpha where padir's divides by ((5 + length) / 6)^alpha, so that the
        two may choose differently; translations beyond padir's limit of tokens are cut. `progress` is called once.

        Raises:
          PadirError: a source has more tokens than the model takes, or the options do not fit the model or CTranslate2.
        """
        checks.strings(texts=texts)
        if target_lengths is not None or trace:
            raise PadirError("CTranslate2 takes no target_lengths and records no trace: leave them out")
        chosen = self.resolved((decoding or self.decoding).changed(**changes))
        assert isinstance(chosen.search, Beam | Greedy)
        tokens, truncated = self.loaded.source_tokens(texts, truncate)
        places = [i for i, text in enumerate(texts) if text.strip()]
        results = [EMPTY_LINE] * len(texts)
        if places:
            limits = length_limits([len(tokens[i]) for i in places], self.card.config.max_length)
            sources = [tokens[i] for i in places]
            written = self.searcher.write(sources, chosen.search, longest=max(limits), batch_size=chosen.batch_size)
            for i, result, limit in zip(places, written, limits, strict=True):
                translation = self.searcher.translation(result, chosen.search, limit)
                results[i] = dataclasses.replace(translation, truncated=i in truncated)
        progress(len(texts))
        return results

    def resolved(self, decoding: Decoding) -> Decoding:
        """Fills in the model's own options, and checks that the options fit the model and CTranslate2.

        Raises:
          PadirError: the options do not fit.
        """
        chosen = super().resolved(decoding)
        check_search(chosen.search)
        for name in ("shortlist", "draft"):
            if getattr(chosen, name) is not None:
                raise PadirError(f"CTranslate2 takes no {name} of padir's: leave it out")
        return chosen
