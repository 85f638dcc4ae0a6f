"""Tokenizers: training a SentencePiece vocabulary, and converting text to token ids and back.

The order of ids is T5's: padding 0, EOS 1, unk 2, then the 256 byte pieces (and symbols of a vocabulary from
elsewhere), then the regular pieces, then the sentinels. The sentinels are not in the SentencePiece file, so that no
text is encoded as a sentinel.

`decode(encode(line)) == line` holds for every line of Unicode text, because byte pieces spell the characters that have
no piece. This includes spaces at the ends, repeated spaces, tabs, NUL, emoji and unseen scripts. There are three
exceptions:
  - U+2581 (LOWER ONE EIGHTH BLOCK), with which SentencePiece writes the space, is decoded as a space;
  - a newline is decoded as a space, so that each translation is one line;
  - surrogate code points are refused, because UTF-8 cannot encode them.
This holds for vocabularies from `train`; a vocabulary from elsewhere may normalise text or lack byte fallback.

A file from `train` ends in the SHA-256 of all bytes before it, in a field that other readers skip. Without this
checksum, a file with a flipped bit may still be a valid vocabulary, but with other pieces.
"""

from __future__ import annotations

import functools
import hashlib
import io
import itertools
import logging
import os
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import sentencepiece
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from padir import checks
from padir.errors import PadirError
from padir.storage.files import atomic_file
from padir.text.ids import EOS, PADDING, UNK, Ids
from padir.text.normalise import Normalised, normalised
from padir.text.spans import MARKS, NUM_PLACEHOLDERS

# Training sums floats over threads, so only a fixed number of threads gives the same vocabulary on every machine.
_TRAIN_THREADS = 4
_SUM_TAG = b"\x82\x7d\x20"  # field 2,000, of 32 bytes; SentencePiece leaves field numbers from 200 on to extensions
_SUM_BYTES = len(_SUM_TAG) + 32
_HALVES = ("source.spm", "target.spm")
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces

_log = logging.getLogger("padir")


class Tokenizer:
    """A SentencePiece model with `num_sentinels` further ids: V = num_pieces + num_sentinels.

    The SentencePiece file holds the pieces alone. A prepared folder or model directory records `num_sentinels` in
    another file, and whether the first sentinels are placeholders. If they are, the characters of
    `padir.text.spans.MARKS` are encoded as placeholders, and decoded from them.

    Attributes:
      model_bytes, sha256: the SentencePiece file and its SHA-256, hexadecimal.
      num_pieces: number of ids in the file, without sentinels.
      ids: the special ids, and the ranges of the other ids.

    Raises:
      PadirError: the bytes are not a SentencePiece model or are damaged; the control ids are not padding 0, EOS 1, unk
        2 and no BOS; the regular pieces do not come last; or placeholders are wanted and the vocabulary lacks bytes.
    """

    def __init__(
        self,
        model_bytes: bytes,
        num_sentinels: int = 100,
        num_placeholders: int = 0,
        *,
        name: str = "the vocabulary",
    ):
        self.model_bytes = model_bytes
        self.sha256 = hashlib.sha256(model_bytes).hexdigest()
        self._processor = sentencepiece.SentencePieceProcessor()
        if not is_whole(model_bytes):
            remedy = "restore it, or make one with `padir vocab`"
            raise PadirError(f"{name} is not a SentencePiece model, or is damaged", remedy=remedy)
        try:
            self._processor.LoadFromSerializedProto(model_bytes)
        except (RuntimeError, UnicodeDecodeError):  # some messages quote damaged bytes
            raise PadirError(f"{name} is not a SentencePiece model", remedy="make one with `padir vocab`") from None
        got = tuple(getattr(self._processor, f"{kind}_id")() for kind in ("pad", "eos", "unk", "bos"))
        if got != (PADDING, EOS, UNK, -1):
            remedy = "train it with `padir vocab`, or with pad_id=0, eos_id=1, unk_id=2, bos_id=-1"
            raise PadirError(f"{name} must have padding 0, EOS 1, unk 2 and no BOS (-1)", got=got, remedy=remedy)
        self.num_pieces: int = self._processor.get_piece_size()
        first = first_regular(model_bytes)
        if first is None:
            remedy = "train it with `padir vocab`, or prepare text with it, which renumbers the pieces"
            raise PadirError(f"{name} must have its regular pieces last", remedy=remedy)
        self.ids = Ids(self.num_pieces + num_sentinels, num_sentinels, first, num_placeholders=num_placeholders)
        self._spelt = {self.ids.end_regular + i: tuple(spelt) for i, spelt in enumerate(self._spelt_marks(name))}
        self._placeholder = {spelt: placeholder for placeholder, spelt in self._spelt.items()}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        num_sentinels: int = 100,
        num_placeholders: int = 0,
        *,
        renumber: bool = True,
    ) -> Tokenizer:
        """Reads a SentencePiece `.model` file.

        Args:
          renumber: give a vocabulary with other ids, such as SentencePiece's defaults, padir's order; texts keep their
            pieces. False refuses it, for checkpoints whose arrays go by the file's ids.

        Raises:
          PadirError: there is no such file, or padir cannot use the vocabulary (see the class).
        """
        path = Path(path)
        if path.name in _HALVES or any((path / name).exists() for name in _HALVES):
            what = f"{path} belongs to a vocabulary in two files ({' and '.join(_HALVES)}, as OPUS-MT has)"
            raise PadirError(what, remedy="train one vocabulary for both languages with `padir vocab`")
        try:
            model_bytes = path.read_bytes()
        except OSError as error:
            remedy = "make one with `padir vocab`"
            raise PadirError(f"cannot read the vocabulary {path} ({error.strerror})", remedy=remedy) from None
        name = f"the vocabulary {path}"
        try:
            return cls(model_bytes, num_sentinels, num_placeholders, name=name)
        except PadirError:
            ordered = in_order(model_bytes) if renumber and is_whole(model_bytes) else None
            if ordered is None:
                raise
        _log.info("%s is renumbered: padding 0, EOS 1, unk 2, no BOS, and regular pieces last", name)
        return cls(with_sum(ordered), num_sentinels, num_placeholders, name=name)

    def with_placeholders(self) -> Tokenizer:
        """Makes a tokenizer of the same vocabulary whose first sentinels are placeholders.

        Raises:
          PadirError: the vocabulary has too few sentinels, or does not spell rare characters in bytes.
        """
        return Tokenizer(self.model_bytes, self.ids.num_sentinels, NUM_PLACEHOLDERS)

    def _spelt_marks(self, name: str) -> list[list[int]]:
        """The bytes that spell each placeholder's mark, as ids."""
        marks = MARKS[: self.ids.num_placeholders]
        spelt = [[self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in mark.encode()] for mark in marks]
        for mark, ids in zip(marks, spelt, strict=True):
            if UNK in ids or self._processor.piece_to_id(mark) != UNK:
                what = f"{name} cannot have placeholders, because it does not spell U+{ord(mark):04X} in bytes"
                raise PadirError(what, remedy="make one with `padir vocab`")
        return spelt

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the SentencePiece file, atomically."""
        with atomic_file(path, binary=True) as file:
            file.write(self.model_bytes)

    def normalised(self, text: str, kinds: Sequence[str] = ()) -> Normalised:
        """The plain form of a sentence (`padir.text.normalise`), with capitals as this vocabulary has them."""
        return normalised(text, kinds, lambda words: map(len, self.encode_batch(words)))

    def encode(self, text: str) -> list[int]:
        """Converts a text to token ids without EOS. `</s>` and `<extra_id_0>` in the text are plain characters.

        Raises:
          PadirError: the text holds surrogate code points.
        """
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """Converts each text to token ids, several times faster than repeated calls of `encode`."""
        texts = checks.strings("texts", texts)
        try:
            if len(texts) == 1:  # a list is given to a new thread
                every = [self._processor.encode(texts[0])]
            else:
                every = self._processor.encode(texts, num_threads=1)
        except (TypeError, RuntimeError):  # SentencePiece's errors for strings that UTF-8 cannot encode
            raise surrogates_error() from None
        if not self._spelt:
            return every
        pairs = zip(texts, every, strict=True)
        return [self._joined(ids) if any(map(text.__contains__, MARKS)) else ids for text, ids in pairs]

    def _joined(self, ids: list[int]) -> list[int]:
        """Replaces the bytes that spell a placeholder's mark by the placeholder."""
        joined: list[int] = []
        for i in ids:
            joined.append(i)
            if placeholder := self._placeholder.get(tuple(joined[-3:])):
                joined[-3:] = [placeholder]
        return joined

    def decode(self, ids: Sequence[int], source: str | None = None) -> str:
        """Converts token ids to one line of text.

        Padding, EOS, sentinels that are no placeholders, and ids outside the vocabulary are left out. So are
        placeholders that are not in the text `source`, if there is one. Unk gives ` ⁇ `, byte pieces that are not valid
        UTF-8 give U+FFFD, and a newline gives a space.
        """
        if self._spelt:
            marks = zip(self._spelt.items(), MARKS, strict=False)
            spelt = {i: own for (i, own), mark in marks if source is None or mark in source}
            ids = [each for i in ids for each in spelt.get(int(i), (i,))]
        pieces = [int(i) for i in ids if UNK <= i < self.num_pieces]
        return self._processor.decode(pieces).replace("\n", " ")

    @functools.cached_property
    def copied(self) -> frozenset[int]:
        """Ids of digits and bytes, which may repeat, because they spell numbers and rare characters."""
        processor = self._processor
        return frozenset(
            i for i in range(self.num_pieces) if processor.is_byte(i) or processor.id_to_piece(i).strip("▁").isdigit()
        )

    @functools.cached_property
    def pieces(self) -> tuple[str, ...]:
        """The V pieces as strings, for traces; U+2581 stands for the space, and sentinels have their names in T5."""
        sentinels = (f"<extra_id_{i}>" for i in reversed(range(self.ids.num_sentinels)))
        return (*(self._processor.id_to_piece(i) for i in range(self.num_pieces)), *sentinels)


def surrogates_error() -> PadirError:
    """The error for text that UTF-8 cannot encode."""
    what = "text must be Unicode without surrogates (U+D800 to U+DFFF), which stand for undecodable bytes"
    return PadirError(what, remedy="read the text as UTF-8")


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

    The text is not normalised, and no spaces are removed. Digits are single pieces, so that numbers are copied digit by
    digit. The same lines give the same file.

    Args:
      texts: lines of both languages. Lines over 4,192 bytes are ignored.
      size: number of pieces, with control ids and bytes but without sentinels: V = size + num_sentinels.
      num_sentinels: number of sentinels, the ids after the pieces.
      max_lines: maximum number of lines to train on; a larger corpus is sampled.
      character_coverage: share of the corpus's characters that get a piece; other characters are spelt in bytes.

    Raises:
      PadirError: the corpus is empty, or has too few words or too many characters for `size`; an argument is out of
        SentencePiece's range; the file cannot be written.
    """
    checks.counts(1, size=size)
    checks.within(1, 2**20, size=size)
    checks.above(100, max_lines=max_lines)
    checks.within(0, 2**31 - 1, max_lines=max_lines)
    checks.within(0.98, 1, character_coverage=character_coverage)
    lines = _sample(checks.each_string("texts", texts), max_lines)
    if lines and not any(line.strip() for line in lines):
        raise PadirError("a vocabulary needs text to learn from, got blank lines", remedy="check the files")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            # SentencePiece has nothing to leave out; without these two options the same lines make another file.
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
        raise _training_problem(str(error), size) from None
    tokenizer = Tokenizer(with_sum(model.getvalue()), num_sentinels)
    tokenizer.save(path)
    return tokenizer


def _sample(lines: Iterator[str], number: int) -> list[str]:
    """A uniform sample of at most `number` lines, the same in every process (reservoir sampling, Vitter 1985).

    SentencePiece's own sample differs from process to process, even with the same seed.
    """
    generator = random.Random(0)
    sample = list(itertools.islice(lines, number))
    for read, line in enumerate(lines, len(sample) + 1):
        if (place := generator.randrange(read)) < number:
            sample[place] = line
    return sample


def _training_problem(message: str, size: int) -> PadirError:
    """Translates SentencePiece's message into padir's terms."""
    if limit := re.search(r"too high .*value <= (\d+)", message):
        return PadirError(
            f"the corpus gives at most {limit[1]} pieces, got size {size}", remedy=f"use size {limit[1]} or more text"
        )
    if required := re.search(r"required_chars\. \d+ vs (\d+)", message):
        return PadirError(
            f"the corpus needs more than {required[1]} pieces (its characters, the bytes and the control ids), got size"
            f" {size}",
            remedy="use a larger size",
        )
    if "sentences_.empty()" in message:
        return PadirError(
            "a vocabulary needs text to learn from, got no lines of at most 4,192 bytes", remedy="check the input files"
        )
    return PadirError(f"SentencePiece could not train the vocabulary: {message}")


def with_sum(model_bytes: bytes) -> bytes:
    """Returns a SentencePiece file with the checksum at the end."""
    return model_bytes + _SUM_TAG + hashlib.sha256(model_bytes).digest()


def is_whole(model_bytes: bytes) -> bool:
    """True if the checksum is right, or if a file without a checksum has all fields of a SentencePiece model.

    The fields reveal a file that was cut off, because the trainer and the normaliser come after the pieces.
    """
    if model_bytes[-_SUM_BYTES:].startswith(_SUM_TAG):
        return model_bytes == with_sum(model_bytes[:-_SUM_BYTES])
    model = _parsed(model_bytes)
    if model is None or len(UnknownFieldSet(model)):
        return False
    return bool(model.pieces) and model.HasField("trainer_spec") and model.HasField("normalizer_spec")


def first_regular(model_bytes: bytes) -> int | None:
    """The first regular piece, from which on all pieces are regular; None if they lie in another way."""
    model = _parsed(model_bytes)
    kinds = [piece.type for piece in model.pieces] if model else []
    first = kinds.index(NORMAL) if NORMAL in kinds else len(kinds)
    return first if {*kinds[first:]} == {NORMAL} else None


def in_order(model_bytes: bytes) -> bytes | None:
    """The vocabulary in padir's layout, without BOS and other control symbols; None if it has no unk.

    The type of each piece decides, not its place. Equal files give equal bytes. Texts are split into the same pieces as
    before.
    """
    model = _parsed(model_bytes)
    unk = next((piece for piece in model.pieces if piece.type == UNKNOWN), None) if model else None
    if model is None or unk is None:
        return None
    special = [model.trainer_spec.pad_piece, model.trainer_spec.eos_piece]
    others = [piece for piece in model.pieces if piece.piece not in (*special, unk.piece)]
    ordered = [unk, *(piece for piece in others if piece.type in (BYTE, USER_DEFINED))]
    ordered += [piece for piece in others if piece.type == NORMAL]
    made = type(model)()
    made.CopyFrom(model)
    made.DiscardUnknownFields()  # the checksum of the file as it was
    del made.pieces[:]
    for name in special:
        made.pieces.add(piece=name, score=0.0, type=CONTROL)
    made.pieces.extend(ordered)
    trainer = made.trainer_spec
    trainer.pad_id = 0
    trainer.eos_id = 1
    trainer.unk_id = 2
    trainer.bos_id = -1
    trainer.vocab_size = len(made.pieces)
    del trainer.control_symbols[:]
    return made.SerializeToString(deterministic=True)


def _parsed(model_bytes: bytes) -> Any:
    """The file's `ModelProto`; None if the bytes are none."""
    from sentencepiece import sentencepiece_model_pb2

    made: Any = sentencepiece_model_pb2  # whose classes are made when it is imported
    try:
        return made.ModelProto.FromString(model_bytes)
    except DecodeError:
        return None
