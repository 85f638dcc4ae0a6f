"""Translation with a folder that `padir export` wrote, without padir.

    python exported.py FOLDER < de.txt > en.txt

    from exported import Exported
    Exported.load("FOLDER")(["Wo ist der Bahnhof?"])

It needs JAX, NumPy, SentencePiece, safetensors and flatbuffers (with which jax.export reads programs; pip does not
install it with JAX). A copy of this file lies in every such folder. The translations are those of `padir.Translator`,
token for token.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import itertools
import json
import os
import sys
import unicodedata
from collections.abc import Callable, Collection, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np
import safetensors
import safetensors.numpy
import sentencepiece

FORMAT = 2
DESCRIPTION, WEIGHTS, VOCABULARY, MANIFEST = "export.json", "weights.safetensors", "vocab.model", "manifest.json"
_PADDING, _EOS, _UNK = 0, 1, 2
# Maximum number of tokens of a row: the loader allocates a row before it runs a program that could refuse its length.
_LONGEST = 2**16
_MOST_DRAFTS = 4_096  # maximum number of drafts of one sentence
_DTYPES = ("float32", "bfloat16", "int8", "int32")


class ExportError(ValueError):
    """An unusable folder or a bad argument; the message says what is wrong."""


class Translated(NamedTuple):
    """One sentence's translation.

    Attributes:
      tokens: target ids without EOS, as the model wrote them.
      score: mean log-probability per token (unless exported with another rule); of an autoregressive model, the score
        of its search.
      passes: decoder passes of this sentence; 0 for an empty one.
      truncated: True if the source was cut.
    """

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    passes: int = 0
    truncated: bool = False


def program_file(stage: str, length: int) -> str:
    """Name of the file that holds a stage's program for rows of a length."""
    return f"{stage}_{length}.jax_export"


class Exported:
    """A loaded export. Programs are read when a batch first needs their length, and compiled once for each shape.

    Attributes:
      folder: the export's folder.
      description: the content of export.json.
      params: the weights by name, on the device.
      files: names of the files that were compared with the manifest; no others are read.
    """

    def __init__(
        self,
        folder: Path,
        description: dict[str, Any],
        params: dict[str, Any],
        vocabulary: bytes,
        files: frozenset[str],
    ):
        self.folder, self.description, self.params, self.files = folder, description, params, files
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(vocabulary)
        if tuple(self._processor.PieceToId(piece) for piece in ("<pad>", "</s>", "<unk>")) != (_PADDING, _EOS, _UNK):
            raise RuntimeError("the vocabulary lacks padding, EOS or unk")
        self._programs: dict[str, Callable[..., Any]] = {}

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Exported:
        """Loads an export; every file is compared with the manifest.

        Raises:
          ExportError: the folder is no export, a file is missing or damaged, or its programs are not for this device.
        """
        folder = Path(folder)
        if importlib.util.find_spec("flatbuffers") is None:
            raise ExportError("JAX reads exported programs with a package that is missing: pip install flatbuffers")
        files = _check(folder)
        try:
            description = json.loads((folder / DESCRIPTION).read_text())
            got = description["format"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise ExportError(
                f"{folder / DESCRIPTION} does not describe an export: make one with `padir export`"
            ) from None
        if got != FORMAT:
            raise ExportError(
                f"{folder / DESCRIPTION} has format {got!r}, this loader reads {FORMAT}: use the folder's own"
            )
        for name, is_right in _fields(description).items():
            if not is_right:
                raise ExportError(f"{folder / DESCRIPTION} has no usable {name}: make the export again")
        platform = jax.export.default_export_platform()
        if platform not in description["platforms"]:
            raise ExportError(
                f"the programs are for {', '.join(description['platforms'])}, and JAX runs on {platform} here: export"
                " for it (--platforms), or set JAX_PLATFORMS=cpu"
            )
        dtypes = description["dtypes"]
        try:
            arrays = safetensors.numpy.load_file(str(folder / WEIGHTS))
            params = {name: np.asarray(value, dtypes[name]) for name, value in arrays.items()}
            vocabulary = (folder / VOCABULARY).read_bytes()
            exported = cls(folder, description, jax.device_put(params), vocabulary, files)
        except (safetensors.SafetensorError, RuntimeError, OSError, LookupError, AttributeError) as error:
            raise ExportError(f"{folder} holds weights or a vocabulary that cannot be read: {error}") from error
        exported._options({})
        return exported

    def __call__(self, texts: Sequence[str], **options: Any) -> list[str]:
        """Translations of sentences, one for each ("" for an empty one). Options are those of `translate_tokens`."""
        return [self.text(result.tokens) for result in self.translate(texts, **options)]

    def translate(self, texts: Sequence[str], **options: Any) -> list[Translated]:
        """Translates sentences, each on its own; options and errors are those of `translate_tokens`.

        Raises:
          ExportError: also where a text holds surrogates, which stand for undecodable bytes.
        """
        if isinstance(texts, str):
            raise ExportError("texts must be a sequence of sentences, got one string: put it into a list")
        try:
            tokens = self._processor.encode(list(texts), num_threads=1)
        except TypeError:
            raise ExportError("texts must be Unicode strings without surrogates (U+D800 to U+DFFF)") from None
        sources = [each if text.strip() else [] for each, text in zip(tokens, texts, strict=True)]
        return self.translate_tokens(sources, **options)

    def translate_tokens(
        self, sources: Sequence[Sequence[int]], *, truncate: bool = False, **options: Any
    ) -> list[Translated]:
        """Translates token ids; equal sources get equal translations, in any order and beside any others.

        Args:
          sources: the ids of each sentence, without EOS; no ids give an empty translation.
          truncate: cut sources that are too long instead of raising.
          options: replace those of export.json: batch_size, seed and, for models that refine drafts, num_steps (the
            maximum number of decoder passes), top_k (the number of lengths to try), offsets (numbers added to each
            length), draws (the number of drafts of each length).

        Raises:
          ExportError: a source is longer than any program takes, or an option is unknown or out of its range.
        """
        chosen = self._options(options)
        limit = self.description["max_source_tokens"]
        for i, source in enumerate(sources):
            if len(source) > limit and not truncate:
                raise ExportError(
                    f"text {i + 1} has {len(source)} tokens, the programs take {limit}: split it, or cut it with"
                    " truncate=True"
                )
        prefix = self.description["source_prefix"]
        rows = [[*prefix, *source[:limit], _EOS] for source in sources]
        order = sorted((i for i, source in enumerate(sources) if len(source)), key=lambda i: len(rows[i]))
        results = [Translated()] * len(sources)
        batch = self._search if self.description["kind"] == "search" else self._refine
        for begin in range(0, len(order), chosen["batch_size"]):
            some = order[begin : begin + chosen["batch_size"]]
            count = min(chosen["batch_size"], 1 << (len(some) - 1).bit_length())  # few shapes, few compilations
            length = self._bucket("source", max(len(rows[i]) for i in some))
            source_BS = np.full((count, length), _PADDING, np.int32)
            for b, i in enumerate(some):
                source_BS[b, : len(rows[i])] = rows[i]
            try:
                written = batch(source_BS, len(some), chosen)
            except ExportError:
                raise
            except (TypeError, ValueError, LookupError, RuntimeError) as error:
                raise ExportError(f"the files of {self.folder} do not fit each other: {error}") from error
            for i, result in zip(some, written, strict=True):
                results[i] = result._replace(truncated=len(sources[i]) > limit)
        return results

    def text(self, tokens: Sequence[int]) -> str:
        """The text of target ids, on one line; repeated tokens are dropped if the model's strategy asks for it."""
        if self.description["drop_repeats"]:
            pairs = zip(tokens, [None, *tokens], strict=False)
            tokens = [token for token, left in pairs if token != left or token in self._copied]
        pieces = [int(i) for i in tokens if _UNK <= i < self._processor.get_piece_size()]
        return self._processor.decode(pieces).replace("\n", " ").replace("\r", " ")

    @functools.cached_property
    def _copied(self) -> frozenset[int]:
        """Ids that may be repeated: digits and bytes."""
        piece = self._processor.id_to_piece
        ids = range(self._processor.get_piece_size())
        return frozenset(i for i in ids if self._processor.is_byte(i) or piece(i).strip("▁").isdigit())

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        defaults = self.description["options"]
        for name in given:
            if name not in defaults:
                raise ExportError(f"there is no option {name!r}: choose of {', '.join(defaults)}")
        chosen = {**defaults, **given}
        for name, value in chosen.items():
            if name == "offsets":
                if not isinstance(value, Collection) or not all(
                    _is_whole(offset, -_LONGEST, _LONGEST) for offset in value
                ):
                    raise ExportError(f"offsets must be whole numbers of at most {_LONGEST:,}, got {value!r}")
            elif not _is_whole(value, 0 if name == "seed" else 1):
                raise ExportError(f"{name} must be a whole number of at least {int(name != 'seed')}, got {value!r}")
        if not len(chosen.get("offsets", [0])):
            raise ExportError("offsets must name at least one offset: (0,) tries the predicted lengths alone")
        if chosen.get("draws", 1) > 1 and self.description["canvas_deterministic"]:
            raise ExportError(f"draws must be 1, got {chosen['draws']}: without randomness all drafts would be equal")
        drafts = chosen.get("top_k", 1) * len(chosen.get("offsets", [0])) * chosen.get("draws", 1)
        if drafts > _MOST_DRAFTS:
            raise ExportError(f"top_k x offsets x draws must be at most {_MOST_DRAFTS:,} drafts, got {drafts:,}")
        return chosen

    def _bucket(self, side: str, length: int) -> int:
        """The shortest row length of `side` that has a program and is at least `length`."""
        buckets = self.description[f"{side}_buckets"]
        for bucket in buckets:
            if bucket >= length:
                return bucket
        raise ExportError(
            f"there is no program for {side} rows of {length} tokens, only up to {max(buckets)}: export more"
        )

    def _run(self, stage: str, length: int, *arguments: Any) -> Any:
        """Runs a stage's program for rows of a length."""
        name = program_file(stage, length)
        if name not in self._programs:
            if name not in self.files:
                raise ExportError(f"there is no program {name} in {self.folder}: export that length")
            try:
                program = jax.export.deserialize(bytearray((self.folder / name).read_bytes()))
            except Exception as error:  # flatbuffers raises errors of many types
                made = f"it was made by JAX {self.description['jax']}, this is {jax.__version__}"
                raise ExportError(f"{self.folder / name} cannot be read ({made}): {error}") from error
            self._programs[name] = jax.jit(program.call)
        return self._programs[name](self.params, *arguments)

    def _lengths(self, length_BM: np.ndarray, chosen: dict[str, Any]) -> list[list[int]]:
        """The target lengths to try for each sentence, EOS included, without duplicates."""
        most = self.description["max_length"]
        if self.description["length_head"] == "token":  # log-probabilities of 1 .. M
            if chosen["top_k"] > length_BM.shape[1]:
                raise ExportError(
                    f"the model knows {length_BM.shape[1]} lengths, got top_k={chosen['top_k']}: try fewer"
                )
            if self.description.get("adjacent_lengths"):
                best_BK = np.array([_neighbours(length_M, chosen["top_k"]) for length_M in length_BM]) + 1
            else:
                best_BK = np.argsort(-length_BM, axis=1, kind="stable")[:, : chosen["top_k"]] + 1
        else:
            if chosen["top_k"] > 1:
                raise ExportError("this model predicts a single length: use top_k=1 with offsets")
            best_BK = length_BM
        offsets = chosen["offsets"]
        tried = [[int(np.clip(k + offset, 2, most)) for offset in offsets for k in row] for row in best_BK.tolist()]
        return [list(dict.fromkeys(row)) for row in tried]

    def _refine(self, source_BS, sentences: int, chosen: dict[str, Any]) -> list[Translated]:
        """Translates a batch by refinement: encode, choose lengths, refine every draft, keep the best."""
        length_BM, memory = self._run("encode", source_BS.shape[1], source_BS)
        log_prob_BM = np.asarray(length_BM)
        lengths = self._lengths(log_prob_BM[:sentences], chosen)
        tried = [list(itertools.product(row, range(chosen["draws"]))) for row in lengths]
        most = max(map(len, tried))
        # A sentence with fewer candidates repeats its first; padding rows repeat the first sentence.
        filled = [row + [row[0]] * (most - len(row)) for row in tried]
        filled += [filled[0]] * (len(source_BS) - sentences)
        length_BN, draw_BN = np.moveaxis(np.array(filled, np.int32), -1, 0)
        longest = self._bucket("target", int(length_BN.max()))
        numbers = (np.int32(chosen["num_steps"]), np.int32(chosen["seed"]))
        refined = self._run("refine", longest, memory, length_BN, draw_BN, *numbers)
        tokens_BNL, score_BN, passes_BN = jax.device_get(refined)
        results = []
        for b, row in enumerate(tried):
            scores = score_BN[b, : len(row)].astype(float)
            if self.description["length_weight"]:
                scores += self.description["length_weight"] * log_prob_BM[b, length_BN[b, : len(row)] - 1]
            scores /= np.maximum(length_BN[b, : len(row)] - 1, 1) ** self.description["brevity"]
            n = int(scores.argmax())
            tokens = tokens_BNL[b, n, : length_BN[b, n] - 1].tolist()
            results.append(Translated(tuple(tokens), float(scores[n]), int(passes_BN[b, n])))
        return results

    def _search(self, source_BS, sentences: int, chosen: dict[str, Any]) -> list[Translated]:
        """Translates a batch with an autoregressive model: one program encodes and searches."""
        # At most factor * (source tokens) + extra target tokens; EOS counts on both sides.
        factor, extra = self.description["length_limit"]
        limit_B = np.minimum(factor * (source_BS > 0).sum(1) + extra, self.description["max_length"])
        limit_B[sentences:] = 2  # padding rows end at once
        arguments = (source_BS, limit_B.astype(np.int32), np.int32(chosen["seed"]))
        written = self._run("search", source_BS.shape[1], *arguments)
        tokens_BNL, length_BN, score_BN, passes_B = jax.device_get(written)
        best_B = score_BN.argmax(-1)[:sentences]
        return [
            Translated(tuple(tokens_BNL[b, n, : length_BN[b, n] - 1].tolist()), float(score_BN[b, n]), int(passes_B[b]))
            for b, n in enumerate(best_B)
        ]


def _neighbours(log_prob_M: np.ndarray, k: int) -> np.ndarray:
    """The k indices that a window around the most likely one takes as it grows to its likelier side."""
    most = int(log_prob_M.argmax())
    lower, higher = np.minimum.accumulate(log_prob_M[most::-1])[:0:-1], np.minimum.accumulate(log_prob_M[most:])
    return np.lexsort((np.abs(np.arange(len(log_prob_M)) - most), -np.concatenate([lower, higher])))[:k]


def _is_whole(value: Any, least: int = 0, most: int = 2**31 - 1) -> bool:
    """True for a whole number in [least, most]."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _fields(description: dict[str, Any]) -> dict[str, bool]:
    """Tells for each field of export.json whether the loader can use it."""

    def is_list(name: str, least: int, most: int, empty: bool = False) -> bool:
        values = description.get(name)
        return isinstance(values, list) and (empty or bool(values)) and all(_is_whole(v, least, most) for v in values)

    def is_kind(name: str, *kinds: type) -> bool:
        return type(description.get(name)) in kinds

    def is_number(name: str) -> bool:
        return is_kind(name, int, float) and abs(description[name]) <= sys.float_info.max  # nan is not, either

    platforms, dtypes = description.get("platforms"), description.get("dtypes")
    refines = description.get("kind") == "refine"
    options = {"batch_size", "seed"} | ({"num_steps", "top_k", "offsets", "draws"} if refines else set())
    usable = {
        "kind": description.get("kind") in ("refine", "search"),
        "jax": is_kind("jax", str),
        "platforms": isinstance(platforms, list) and all(isinstance(each, str) for each in platforms),
        "dtypes": isinstance(dtypes, dict) and all(each in _DTYPES for each in dtypes.values()),
        "source_buckets": is_list("source_buckets", 2, _LONGEST),
        "source_prefix": is_list("source_prefix", 0, 2**31 - 1, empty=True),
        "max_length": _is_whole(description.get("max_length"), 1, _LONGEST),
        "max_source_tokens": _is_whole(description.get("max_source_tokens"), 0, _LONGEST),
        "drop_repeats": is_kind("drop_repeats", bool),
        "options": is_kind("options", dict) and set(description["options"]) == options,
    }
    if not refines:
        return usable | {"length_limit": is_list("length_limit", 0, _LONGEST) and len(description["length_limit"]) == 2}
    return usable | {
        "target_buckets": is_list("target_buckets", 2, _LONGEST),
        "length_head": is_kind("length_head", str),
        "brevity": is_number("brevity"),
        "length_weight": is_number("length_weight"),
        "canvas_deterministic": is_kind("canvas_deterministic", bool),
        "adjacent_lengths": is_kind("adjacent_lengths", bool, type(None)),  # older folders have none
    }


def _check(folder: Path) -> frozenset[str]:
    """Compares every file with the manifest and returns their names."""
    try:
        if not (folder / MANIFEST).is_file():
            raise OSError
        entries = json.loads((folder / MANIFEST).read_text())["files"]
        sums = {name: entry["sha256"] for name, entry in entries.items()}
    except OSError:
        raise ExportError(f"{folder} has no {MANIFEST}: it is no whole folder of `padir export`") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ExportError(f"{folder / MANIFEST} is damaged: restore the folder from a copy") from None
    for name, expected in sums.items():
        if not _is_inside(folder, name):
            raise ExportError(f"{folder / MANIFEST} names a file outside its folder: {name!r}")
        try:
            if not (folder / name).is_file():  # reading a pipe would wait for ever
                raise OSError
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError:
            raise ExportError(f"{folder / name} is missing: restore the folder from a copy") from None
        if digest != expected:
            raise ExportError(f"{folder / name} is damaged (its sha256 differs): restore the folder from a copy")

    if missing := [name for name in (DESCRIPTION, WEIGHTS, VOCABULARY) if name not in sums]:
        raise ExportError(f"{folder / MANIFEST} does not name {missing[0]}: restore the folder from a copy")
    return frozenset(sums)


def _is_inside(folder: Path, name: str) -> bool:
    """True if a file lies in the folder, or is a blob that a snapshot in a cache of Hugging Face's hub links to."""
    path, home = folder / name, folder.resolve()
    try:
        file, repository = path.resolve(), home.parent.parent
    except (OSError, RuntimeError, ValueError):  # circular links, a name too long, NUL
        return False
    is_snapshot = home.parent.name == "snapshots" and repository.name.startswith("models--")
    is_blob = is_snapshot and path.parent == folder and file.parent == repository / "blobs"
    return is_blob or file.is_relative_to(home)


def main(argv: Sequence[str] | None = None) -> int:
    """Translates standard input line by line; returns the exit status."""
    parser = argparse.ArgumentParser(description="Translates the lines of standard input with an exported model.")
    parser.add_argument("folder", help="from `padir export`")
    for name in ("num_steps", "top_k", "batch_size", "seed"):
        parser.add_argument(f"--{name}", type=int, help="overrides the folder's option")
    options = {name: value for name, value in vars(parser.parse_args(argv)).items() if value is not None}
    try:
        exported = Exported.load(options.pop("folder"))
        lines, first = (line.decode("utf-8", "replace").rstrip("\r\n") for line in sys.stdin.buffer), 0
        while chunk := list(itertools.islice(lines, 1024)):
            results = exported.translate(chunk, truncate=True, **options)
            for number, result in enumerate(results, first + 1):
                if result.truncated:
                    print(f"line {number} is longer than the programs take: its end was cut off", file=sys.stderr)
            texts = [exported.text(result.tokens) for result in results]
            if sys.stdout.isatty():  # a terminal would obey control characters
                texts = ["".join("\ufffd" if unicodedata.category(sign) == "Cc" else sign for sign in t) for t in texts]
            sys.stdout.buffer.write("".join(text + "\n" for text in texts).encode())
            sys.stdout.buffer.flush()
            first += len(chunk)
    except ExportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has closed the pipe, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 141
    return 0


if __name__ == "__main__":
    sys.exit(main())
