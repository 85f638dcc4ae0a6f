"""SentencePiece vocabularies: training one, and turning text into ids and back.

Ids lie as T5's do: padding 0, EOS 1, unk 2, then the 256 byte pieces, then the regular pieces, and the sentinels above
them all. The sentinels are not in the SentencePiece file, so no text can ever be encoded as one.

What goes in comes back: `decode(encode(line)) == line` for every line of Unicode text (leading, trailing and repeated
spaces, tabs, NUL, emoji, unseen scripts: bytes cover what the pieces do not), with these exceptions:
  - U+2581 (LOWER ONE EIGHTH BLOCK), with which SentencePiece writes the space, comes back as a space;
  - a newline comes back as a space, because one line in must be one line out;
  - surrogate code points are no text (UTF-8 cannot hold them) and are refused.
This holds for the vocabularies that `train` makes; one trained elsewhere may normalise text or lack byte fallback.

A file that `train` makes ends in the sha256 of what comes before, in a field that other readers of SentencePiece files
pass over: a vocabulary with a flipped bit would still be one, of other words.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import sentencepiece

from padir.errors import PadirError
from padir.storage.files import atomic_file
from padir.text.ids import EOS, NUM_BYTES, PADDING, UNK, Ids

# Training sums floats over threads: a fixed count, not the machine's, makes the vocabulary the same everywhere.
_TRAIN_THREADS = 4

# The file is a protocol buffer: pieces, trainer, normaliser, self-test, denormaliser. Numbers from 200 on are free.
_PIECES, _TRAINER, _NORMALISER, _LAST_FIELD = 1, 2, 3, 5
_SUM_TAG = b"\x82\x7d\x20"  # field 2,000, of 32 bytes
_SUM_BYTES = len(_SUM_TAG) + 32


class Tokenizer:
    """A SentencePiece model with `num_sentinels` ids on top: V = pieces + num_sentinels.

    The file holds the pieces only; whoever stores a vocabulary (a prepared folder, a model directory) records
    `num_sentinels` beside it.

    Raises:
      PadirError: the bytes are no SentencePiece model or a damaged one, or its control ids are not padding 0, EOS 1,
        unk 2, no BOS.
    """

    def __init__(self, model_bytes: bytes, num_sentinels: int = 100, *, name: str = "the vocabulary"):
        self.model_bytes = model_bytes
        self.sha256 = hashlib.sha256(model_bytes).hexdigest()
        self._processor = sentencepiece.SentencePieceProcessor()
        if not _is_whole(model_bytes):
            raise PadirError(
                f"{name} is not a SentencePiece model, or a damaged one: restore it, or make one with `padir vocab`"
            )
        try:
            self._processor.LoadFromSerializedProto(model_bytes)
        except (RuntimeError, UnicodeDecodeError):  # the latter of a message about damaged bytes
            raise PadirError(f"{name} is not a SentencePiece model: make one with `padir vocab`") from None
        got = tuple(getattr(self._processor, f"{kind}_id")() for kind in ("pad", "eos", "unk", "bos"))
        if got != (PADDING, EOS, UNK, -1):
            raise PadirError(
                f"{name} must have padding 0, EOS 1, unk 2 and no BOS (-1), got {got}: train it with `padir vocab`, or"
                " with pad_id=0, eos_id=1, unk_id=2, bos_id=-1"
            )
        self.num_pieces: int = self._processor.get_piece_size()
        has_bytes = self.num_pieces > UNK + 1 and self._processor.is_byte(UNK + 1)
        self.ids = Ids(
            vocab_size=self.num_pieces + num_sentinels,
            num_sentinels=num_sentinels,
            first_regular=UNK + 1 + (NUM_BYTES if has_bytes else 0),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str], num_sentinels: int = 100) -> Tokenizer:
        """Reads a SentencePiece `.model` file.

        Raises:
          PadirError: no such file, or not a vocabulary that padir can use (see the class).
        """
        try:
            model_bytes = Path(path).read_bytes()
        except OSError as error:
            raise PadirError(
                f"cannot read the vocabulary {path} ({error.strerror}): make one with `padir vocab`"
            ) from None
        return cls(model_bytes, num_sentinels, name=f"the vocabulary {path}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the SentencePiece file, atomically."""
        with atomic_file(path, binary=True) as file:
            file.write(self.model_bytes)

    def encode(self, text: str) -> list[int]:
        """Ids of `text` without EOS. `</s>` or `<extra_id_0>` in the text are plain characters.

        Raises:
          PadirError: the text holds surrogate code points.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text, several times faster than one by one."""
        try:
            return self._processor.encode(list(texts), num_threads=1)
        except TypeError:  # SentencePiece's word for a string that is not UTF-8
            raise PadirError(
                "text must be Unicode without surrogates (U+D800 to U+DFFF), which stand for undecodable bytes: read"
                " the text as UTF-8"
            ) from None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, on one line.

        Padding, EOS, sentinels and ids that belong to no token give no text, wherever they stand; unk gives ` ⁇ `;
        byte pieces that form no UTF-8 give U+FFFD; a newline gives a space.
        """
        pieces = [int(i) for i in ids if UNK <= i < self.num_pieces]
        return self._processor.decode(pieces).replace("\n", " ")

    @functools.cached_property
    def copied(self) -> frozenset[int]:
        """Ids whose repetition is no slip: digits and bytes, of which numbers and rare characters are spelt."""
        processor = self._processor
        return frozenset(
            i for i in range(self.num_pieces) if processor.is_byte(i) or processor.id_to_piece(i).strip("▁").isdigit()
        )

    @functools.cached_property
    def pieces(self) -> tuple[str, ...]:
        """What each id looks like, for traces: V strings, the space written as U+2581, sentinels as T5 names them."""
        sentinels = (f"<extra_id_{i}>" for i in reversed(range(self.ids.num_sentinels)))
        return (*(self._processor.id_to_piece(i) for i in range(self.num_pieces)), *sentinels)


def train(
    texts: Iterable[str],
    path: str | os.PathLike[str],
    *,
    size: int = 32_000,
    num_sentinels: int = 100,
    max_lines: int = 5_000_000,
    character_coverage: float = 0.9995,
) -> Tokenizer:
    """Trains a unigram vocabulary of `size` pieces on lines of text and writes it to `path`, atomically.

    The text is taken as it is: no Unicode normalisation, no spaces removed. Digits are single pieces, so that numbers
    are copied digit by digit. The same lines give the same bytes.

    Args:
      texts: lines of both languages. Lines over 4,192 bytes do not count.
      path: where the `.model` file goes.
      size: pieces, control ids and bytes included, sentinels not: V = size + num_sentinels.
      num_sentinels: ids on top of the pieces.
      max_lines: a larger corpus is sampled down to that many lines.
      character_coverage: share of the corpus's characters that get a piece; the rest is spelt in bytes.

    Raises:
      PadirError: the corpus is empty, or has too few words or too many characters for `size`, an argument is out of
        SentencePiece's range, or the file cannot be written.
    """
    if size < 1:
        raise PadirError("size", "at least 1", size)
    if max_lines <= 100:
        raise PadirError("max_lines", "above 100", max_lines)
    if not 0.98 <= character_coverage <= 1:
        raise PadirError("character_coverage", "between 0.98 and 1", character_coverage)
    problems: list[PadirError] = []

    def lines() -> Iterator[str]:
        """The texts; SentencePiece would make a word of its own of what they raise."""
        try:
            yield from texts
        except PadirError as error:
            problems.append(error)
            raise

    model = io.BytesIO()
    sentencepiece.set_random_generator_seed(0)  # it draws the sample of `max_lines`
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines(),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            input_sentence_size=max_lines,
            shuffle_input_sentence=True,
            character_coverage=character_coverage,
            byte_fallback=True,
            split_digits=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            pad_id=PADDING,
            eos_id=EOS,
            unk_id=UNK,
            bos_id=-1,
            num_threads=_TRAIN_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        if problems:
            raise problems[0] from None
        raise PadirError(_training_problem(str(error), size)) from None
    tokenizer = Tokenizer(_with_sum(model.getvalue()), num_sentinels)
    tokenizer.save(path)
    return tokenizer


def _with_sum(model_bytes: bytes) -> bytes:
    return model_bytes + _SUM_TAG + hashlib.sha256(model_bytes).digest()


def _is_whole(model_bytes: bytes) -> bool:
    """Whether a file has its sum, or the fields of a vocabulary and no others: one cut between two pieces has not."""
    if model_bytes[-_SUM_BYTES:].startswith(_SUM_TAG):
        return model_bytes == _with_sum(model_bytes[:-_SUM_BYTES])
    try:
        numbers = set(_fields(model_bytes))
    except (IndexError, ValueError):
        return False
    return {_PIECES, _TRAINER, _NORMALISER} <= numbers and max(numbers) <= _LAST_FIELD


def _fields(message: bytes) -> Iterator[int]:
    """The numbers of a protocol buffer's fields, all of which hold bytes."""

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
            if byte < 0x80:
                return value

    at = 0
    while at < len(message):
        tag = varint()
        length = varint()  # which moves `at`
        at += length
        if tag & 7 != 2 or at > len(message):
            raise ValueError
        yield tag >> 3


def _training_problem(message: str, size: int) -> str:
    """SentencePiece's message in padir's terms."""
    if limit := re.search(r"too high .*value <= (\d+)", message):
        return f"the corpus gives at most {limit[1]} pieces, got size {size}: use --size {limit[1]} or more text"
    if required := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return (
            f"the corpus needs more than {required[1]} pieces (its characters, the bytes and the control ids), got size"
            f" {size}: use a larger --size"
        )
    if "sentences_.empty()" in message:
        return "a vocabulary needs text to learn from, got no lines of at most 4,192 bytes: check the input files"
    return f"SentencePiece could not train the vocabulary: {message}"
