"""`TestSet`: sentence pairs on which models are scored."""

from __future__ import annotations

import dataclasses
import hashlib

from padir.data.prepared import load_manifest, read_text
from padir.data.sources import PathLike, Source
from padir.errors import PadirError


@dataclasses.dataclass(frozen=True)
class TestSet:
    """Sentence pairs to score models on, with their origin; the languages choose the metrics' tokenizers.

    >>> TestSet("greetings", "de", "en", ["Hallo!"], ["Hello!"]).split
    'test'

    Attributes:
      task: name of the corpus or file.
      source_language, target_language: codes such as "de".
      sources, references: one string a sentence.
      split: name of the split of the corpus.
    """

    task: str
    source_language: str
    target_language: str
    sources: list[str]
    references: list[str]
    split: str = "test"

    __test__ = False  # pytest collects classes whose names begin with "Test"

    @property
    def sha256(self) -> str:
        """SHA-256 of all sentences and references, which tells test sets of one name apart."""
        return hashlib.sha256("\n".join([*self.sources, *self.references]).encode()).hexdigest()

    def check_languages(self, source_language: str, target_language: str, model: str) -> None:
        """Refuses a model of other languages; `model` is its name for the message."""
        if (source_language, target_language) != (self.source_language, self.target_language):
            raise PadirError(
                f"{model} translates {source_language}-{target_language}, and the test set is"
                f" {self.source_language}-{self.target_language}: give sentences of the model's languages"
            )

    @staticmethod
    def of_source(source: Source, split: str) -> TestSet:
        """Read a split of a corpus.

        Raises:
          PadirError: the corpus has no such split, or its files are not parallel text.
        """
        pairs = list(source.pairs(split))
        sources, references = [s for s, _ in pairs], [t for _, t in pairs]
        return TestSet(source.name, source.source_language, source.target_language, sources, references, split)

    @staticmethod
    def of_prepared(directory: PathLike, split: str) -> TestSet:
        """Read the untouched text of a prepared folder's split, including pairs that were dropped from the records.

        Raises:
          PadirError: the folder is incomplete or keeps no text of the split.
        """
        source = load_manifest(directory).source
        return TestSet(source.name, *source.languages, *read_text(directory, split), split)
