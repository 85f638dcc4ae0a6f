"""The layout of a SentencePiece vocabulary: which ids are regular pieces, and other vocabularies in padir's layout.

padir's layout is padding 0, EOS 1, unk 2, then bytes and user-defined symbols, then the regular pieces to the end. So
random drafts are drawn from one range of ids. The type of each piece decides, not its place.
"""

from __future__ import annotations

from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


def first_regular(model_bytes: bytes) -> int | None:
    """The first regular piece, from which on all pieces are regular; None if they lie in another way."""
    kinds = [piece.type for piece in _parsed(model_bytes).pieces]
    first = kinds.index(NORMAL) if NORMAL in kinds else len(kinds)
    return first if {*kinds[first:]} == {NORMAL} else None


def in_order(model_bytes: bytes) -> bytes | None:
    """The vocabulary in padir's layout, without BOS and other control symbols; None if it has no unk.

    Equal files give equal bytes. Texts are split into the same pieces as before.
    """
    from google.protobuf.message import DecodeError

    try:
        model = _parsed(model_bytes)
    except DecodeError:
        return None
    unk = next((piece for piece in model.pieces if piece.type == UNKNOWN), None)
    if unk is None:
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
    trainer.pad_id, trainer.eos_id, trainer.unk_id, trainer.bos_id = 0, 1, 2, -1
    trainer.vocab_size = len(made.pieces)
    del trainer.control_symbols[:]
    return made.SerializeToString(deterministic=True)


def _parsed(model_bytes: bytes) -> Any:
    from sentencepiece import sentencepiece_model_pb2

    made: Any = sentencepiece_model_pb2  # whose classes are made when it is imported
    return made.ModelProto.FromString(model_bytes)
