"""Files of arrays: each kind comes back as it was, and what is damaged, missing or of another kind is refused."""

import dataclasses

import numpy as np
import pytest
from support.refusals import refuses
from support.small_corpus import letters_tokenizer

from padir.decoding.bigrams import Bigrams
from padir.decoding.shortlist import Shortlist
from padir.errors import PadirError

IDS = np.array([1, 2], np.int32)
KINDS = [
    (Shortlist("0123", np.array([[0, 0], [2, 1], [1, 0]], np.int32), IDS, 1), "padir-shortlist", "shortlist"),
    (
        Bigrams("0123", IDS, IDS, IDS, np.array([0, 1, 9]), np.array([0, 1, 9]), IDS.astype(np.uint32)),
        "padir-bigrams",
        "bigrams",
    ),
]


def equal(one, other):
    values = [dataclasses.asdict(each) for each in (one, other)]
    return all(np.array_equal(values[0][name], values[1][name]) for name in values[0])


@pytest.mark.parametrize(("kept", "format", "noun"), KINDS)
def test_a_file_comes_back_or_is_refused(kept, format, noun, tmp_path, monkeypatch):
    load, path = type(kept).load, tmp_path / "kept.npz"
    kept.save(path)
    assert equal(load(path), kept)
    whole, refused = path.read_bytes(), 0

    def stop(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(np, "savez_compressed", stop)
        kept.save(path)
    assert path.read_bytes() == whole and [*tmp_path.iterdir()] == [path]
    for at in range(0, len(whole), 5):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            assert equal(load(path), kept)  # a date, say
        except PadirError as error:
            refused += f"padir {noun}" in str(error)
    assert refused > len(whole) / 5 / 2
    np.save(tmp_path / "one.npy", IDS)
    for content in (b"", b"text", whole[:-30], (tmp_path / "one.npy").read_bytes()):
        path.write_bytes(content)
        refuses(load, f"is damaged or no ... {noun}", path)
    refuses(load, f"cannot read the ... {noun} ... No such file", tmp_path / "nothing")
    np.savez(path, format=f"{format} 0")
    refuses(load, f"'{format} 1', got '{format} 0'", path)
    pickled = dict.fromkeys(vars(kept), np.array([{}], object))
    np.savez(path, allow_pickle=True, **pickled | {"format": f"{format} 1"})
    refuses(load, f"is damaged or no ... {noun}", path)
    refuses(kept.check, f"{noun} has another vocabulary (3 pieces, sha256 0123)", letters_tokenizer())
