"""Writes and checks the checksum at the end of a SentencePiece file.

A file from `padir vocab` ends in the SHA-256 of all bytes before the checksum, in a field that other readers of
SentencePiece files skip. Without a checksum, a file with a flipped bit may still be a valid vocabulary, but with other
pieces.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

# The file is a protocol buffer with the fields 1 to 5: pieces, trainer, normaliser, self-test and denormaliser. Its
# format leaves field numbers from 200 on to extensions.
_PIECES, _TRAINER, _NORMALISER, _LAST_FIELD = 1, 2, 3, 5
_SUM_TAG = b"\x82\x7d\x20"  # field 2,000, of 32 bytes
_SUM_BYTES = len(_SUM_TAG) + 32


def with_sum(model_bytes: bytes) -> bytes:
    """Returns a SentencePiece file with the checksum at the end."""
    return model_bytes + _SUM_TAG + hashlib.sha256(model_bytes).digest()


def is_whole(model_bytes: bytes) -> bool:
    """True if the checksum is right, or if a file without checksum has the fields of a SentencePiece model.

    The fields reveal a file that was cut off, because the trainer and the normaliser come after the pieces.
    """
    if model_bytes[-_SUM_BYTES:].startswith(_SUM_TAG):
        return model_bytes == with_sum(model_bytes[:-_SUM_BYTES])
    try:
        numbers = set(_fields(model_bytes))
    except (IndexError, ValueError):
        return False
    return {_PIECES, _TRAINER, _NORMALISER} <= numbers and max(numbers) <= _LAST_FIELD


def _fields(message: bytes) -> Iterator[int]:
    """Yields the field numbers of a protocol buffer whose fields all hold bytes."""

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
        length = varint()  # moves `at`
        at += length
        if tag & 7 != 2 or at > len(message):
            raise ValueError
        yield tag >> 3
