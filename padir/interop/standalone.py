"""Translation with a folder that `padir export` wrote, without padir.

    python exported.py FOLDER < de.txt > en.txt

    from exported import Exported
    Exported.load("FOLDER")(["Wo ist der Bahnhof?"])

It needs JAX, NumPy, SentencePiece, safetensors and flatbuffers. jax.export reads programs with flatbuffers, which pip
does not install with JAX. A copy of this file lies in every exported folder. The translations equal those of
`padir.Translator`, token for token.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np
import safetensors
import safetensors.numpy
import sentencepiece

FORMAT = 3
DESCRIPTION, WEIGHTS, VOCABULARY, MANIFEST = "export.json", "weights.safetensors", "vocab.model", "manifest.json"
_PADDING, _EOS, _UNK = 0, 1, 2
_MOST_DRAFTS = 4_096  # maximum number of drafts of one sentence


class ExportError(ValueError):
    """An unusable folder or a bad argument; the message says what is wrong."""


class Translated(NamedTuple):
    """One sentence's translation.

    Attributes:
      tokens: target ids without EOS, and without the repeated tokens that the model's strategy drops.
      score: mean log-probability per token, if `brevity` and `length_weight` have their defaults; for an autoregressive
        model, the score of its search.
      passes: decoder passes of this sentence; 0 for an empty one.
      truncated: True if the source was cut.
      text: the text of the tokens; "" for sources that were given as tokens.
    """

    tokens: tuple[int, ...] = ()
    score: float = 0.0
    passes: int = 0
    truncated: bool = False
    text: str = ""


def program_file(stage: str, length: int) -> str:
    """Name of the file that holds a stage's program for rows of a length."""
    return f"{stage}_{length}.jax_export"


@dataclasses.dataclass(frozen=True, eq=False)
class Exported:
    """A loaded export. A program is read when a batch first needs its row length, and compiled once for each shape.

    Attributes:
      folder: the export's folder.
      description: the content of export.json.
      params: the weights by name, on the device.
      files: names of the files that were compared with the manifest; no others are read.
    """

    folder: Path
    description: dict[str, Any]
    params: dict[str, Any]
    files: frozenset[str]
    _processor: sentencepiece.SentencePieceProcessor
    _programs: dict[str, Callable[..., Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Exported:
        """Loads an export; every file is compared with the manifest.

        Raises:
          ExportError: the folder is no export, a file is missing or damaged, or its programs are not for this device.
        """
        folder = Path(folder)
        if importlib.util.find_spec("flatbuffers") is None:
            raise ExportError("JAX needs flatbuffers to read exported programs: pip install flatbuffers")
        files = _check(folder)
        file = folder / DESCRIPTION
        try:
            description = json.loads(file.read_text())
            got = description["format"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            raise ExportError(f"{file} does not describe an export: make one with `padir export`") from None
        if got != FORMAT:
            raise ExportError(f"{file} has format {got!r}, this loader reads {FORMAT}: use the folder's own loader")
        platform = jax.export.default_export_platform()
        if platform not in description["platforms"]:
            what = f"the programs are for {', '.join(description['platforms'])}, and JAX runs on {platform} here"
            raise ExportError(f"{what}: export for this platform, or set JAX_PLATFORMS=cpu")
        processor, dtypes = sentencepiece.SentencePieceProcessor(), description["dtypes"]
        try:
            arrays = safetensors.numpy.load_file(str(folder / WEIGHTS))
            params = {name: np.asarray(value, dtypes[name]) for name, value in arrays.items()}
            processor.LoadFromSerializedProto((folder / VOCABULARY).read_bytes())
            if tuple(processor.PieceToId(piece) for piece in ("<pad>", "</s>", "<unk>")) != (_PADDING, _EOS, _UNK):
                raise RuntimeError("the vocabulary lacks padding, EOS or unk")
        except (safetensors.SafetensorError, RuntimeError, OSError, LookupError, AttributeError) as error:
            raise ExportError(f"{folder} holds weights or a vocabulary that cannot be read: {error}") from error
        exported = cls(folder, description, jax.device_put(params), files, processor)
        exported._options({})
        return exported

    def __call__(self, texts: Sequence[str], **options: Any) -> list[str]:
        """One translation for each sentence ("" for an empty one). The options are as in `translate_tokens`."""
        return [result.text for result in self.translate(texts, **options)]

    def translate(self, texts: Sequence[str], **options: Any) -> list[Translated]:
        """Translates sentences, each on its own; options and errors are as in `translate_tokens`.

        Raises:
          ExportError: also if a text holds surrogates, which stand for undecodable bytes.
        """
        if isinstance(texts, str | bytes | dict | set):
            raise ExportError(f"texts must be a list of sentences, got one {type(texts).__name__}: make it a list")
        texts = list(texts)
        try:
            tokens = self._processor.encode(texts, num_threads=1)
        except TypeError:
            raise ExportError("texts must be Unicode strings without surrogates (U+D800 to U+DFFF)") from None
        sources = [each if text.strip() else [] for each, text in zip(tokens, texts, strict=True)]
        results = self.translate_tokens(sources, **options)
        return [r._replace(text=self.text(r.tokens, text)) for r, text in zip(results, texts, strict=True)]

    def translate_tokens(
        self, sources: Sequence[Sequence[int]], *, truncate: bool = False, **options: Any
    ) -> list[Translated]:
        """Translates token ids; equal sources get equal translations, in any order and in any batch.

        Args:
          sources: the ids of each sentence, without EOS; no ids give an empty translation.
          truncate: cut sources that are too long instead of raising.
          options: replace those of export.json: batch_size, seed and, for models that refine drafts, num_steps (the
            maximum number of decoder passes), top_k (the number of lengths to try), draws (the number of drafts of each
            length).

        Raises:
          ExportError: a source is longer than any program takes, or an option is unknown or out of its range.
        """
        chosen = self._options(options)
        limit = self.description["max_source_tokens"]
        for i, source in enumerate(sources):
            if len(source) > limit and not truncate:
                taken = f"the programs take {limit}: split it, or cut it with truncate=True"
                raise ExportError(f"text {i + 1} has {len(source)} tokens, {taken}")
        prefix = self.description["source_prefix"]
        rows = [[*prefix, *source[:limit], _EOS] for source in sources]
        order = sorted((i for i, source in enumerate(sources) if len(source)), key=lambda i: len(rows[i]))
        results = [Translated()] * len(sources)
        for begin in range(0, len(order), chosen["batch_size"]):
            some = order[begin : begin + chosen["batch_size"]]
            count = min(chosen["batch_size"], 1 << (len(some) - 1).bit_length())  # few shapes, few compilations
            try:
                source_BS = np.full((count, self._bucket("source", len(rows[some[-1]]))), _PADDING, np.int32)
                for b, i in zip(range(count), itertools.cycle(some)):  # rows that pad the batch repeat its sentences
                    source_BS[b, : len(rows[i])] = rows[i]
                tokens_BNL, length_BN, score_BN, passes_BN = self._write(source_BS, chosen)
                for b, i in enumerate(some):
                    written = [row[:n].tolist() for row, n in zip(tokens_BNL[b], length_BN[b], strict=True)]
                    best = self._best(score_BN[b], written, sources[i])
                    numbers = float(score_BN[b, best]), int(passes_BN[b, best])
                    results[i] = Translated(tuple(written[best]), *numbers, truncated=len(sources[i]) > limit)
            except ExportError:
                raise
            except (TypeError, ValueError, LookupError, RuntimeError) as error:
                raise ExportError(f"the files of {self.folder} do not fit each other ({error}): export anew") from error
        return results

    def text(self, tokens: Sequence[int], source: str = "") -> str:
        """The text of target ids, on one line; broken characters and doubled spaces are dropped."""
        text = re.sub("[\\x00-\\x08\\n-\\x1f\\x7f-\\x9f\\u2028\\u2029]", " ", self._raw(tokens))
        text = text if "\ufffd" in source else text.replace("\ufffd", "")
        return text if "  " in source else re.sub(" {2,}", " ", text)

    def _raw(self, tokens: Sequence[int]) -> str:
        """The text as it was written."""
        pieces = [int(i) for i in tokens if _UNK <= i < self._processor.get_piece_size()]
        return self._processor.decode(pieces)

    def _best(self, scores: np.ndarray, rows: Sequence[Sequence[int]], source: Sequence[int]) -> int:
        """The number of the best row whose bytes are characters, or else of the best row; the first of equals wins."""
        if not (order := [int(n) for n in np.argsort(-scores, kind="stable") if np.isfinite(scores[n])]):
            raise ExportError("the model's logits are not finite, so that it writes nothing: check its weights")
        kept = "\ufffd" in self._raw(source)
        return next((n for n in order if kept or "\ufffd" not in self._raw(rows[n])), order[0])

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        defaults = self.description["options"]
        for name in given:
            if name not in defaults:
                raise ExportError(f"there is no option {name!r}: choose one of {', '.join(defaults)}")
        chosen = {**defaults, **given}
        for name, value in chosen.items():
            least = int(name != "seed")
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value < 2**31:
                raise ExportError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if chosen.get("draws", 1) > 1 and self.description["canvas_deterministic"]:
            raise ExportError(f"draws must be 1, got {chosen['draws']}: without randomness all drafts would be equal")
        if (drafts := chosen.get("top_k", 1) * chosen.get("draws", 1)) > _MOST_DRAFTS:
            raise ExportError(f"top_k x draws must be at most {_MOST_DRAFTS:,} drafts, got {drafts:,}")
        return chosen

    def _bucket(self, side: str, length: int) -> int:
        """The shortest row length of `side` that has a program and is at least `length`."""
        return min(bucket for bucket in self.description[f"{side}_buckets"] if bucket >= length)

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

    def _write(self, source_BS: np.ndarray, chosen: dict[str, Any]) -> Any:
        """Targets of a batch, their numbers of tokens, scores and passes; each array is on the host."""
        if self.description["kind"] == "search":
            return jax.device_get(self._run("search", source_BS.shape[1], source_BS, np.int32(chosen["seed"])))
        length_BM, log_prob_BM, memory = self._run("encode", source_BS.shape[1], source_BS)
        top_k, draws = chosen["top_k"], chosen["draws"]
        if top_k > (known := length_BM.shape[1]):
            raise ExportError(f"the model knows {known} lengths, got top_k={top_k}: try fewer")
        length_BN, log_prob_BN = (np.repeat(np.asarray(x)[:, :top_k], draws, 1) for x in (length_BM, log_prob_BM))
        draw_BN = np.broadcast_to(np.tile(np.arange(draws, dtype=np.int32), top_k), length_BN.shape)
        numbers = np.int32(chosen["num_steps"]), np.int32(chosen["seed"])
        longest = self._bucket("target", int(length_BN.max()))
        return jax.device_get(self._run("refine", longest, memory, length_BN, log_prob_BN, draw_BN, *numbers))


def _check(folder: Path) -> frozenset[str]:
    """Compares every file with the manifest and returns their names."""
    try:
        if not (folder / MANIFEST).is_file():
            raise OSError
        entries = json.loads((folder / MANIFEST).read_text())["files"]
        sums = {name: entry["sha256"] for name, entry in entries.items()}
    except OSError:
        raise ExportError(f"{folder} has no {MANIFEST}: it is no complete folder of `padir export`") from None
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
            sys.stdout.buffer.write("".join(result.text + "\n" for result in results).encode())
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
