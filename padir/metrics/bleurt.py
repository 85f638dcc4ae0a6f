"""BLEURT (Sellam et al., ACL 2020; Pu et al., EMNLP 2021) from a checkpoint folder on disk.

A checkpoint is a TensorFlow SavedModel with `bleurt_config.json`. The graph of the model takes token ids, which this
module makes from text:

    [CLS] reference [SEP] candidate [SEP]      segment 0 up to the first [SEP], segment 1 after it, padded with zeros

The older checkpoints (such as bleurt-base-128) read BERT's word pieces; BLEURT-20 and its distilled checkpoints read
SentencePiece. A pair that is too long for the graph is cut token by token: each time the longer side loses its last
token, or the candidate if both sides have the same length.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from padir.errors import PadirError
from padir.metrics.scores import Score, lined_up

_CONFIG = "bleurt_config.json"
_WHOLE = "take a whole checkpoint"
UNKNOWN = "[UNK]"
_LONGEST_WORD = 200  # maximum number of characters of a word; longer words become unknown


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The tokenisation of a checkpoint.

    Attributes:
      encode: text -> ids, without [CLS] and [SEP].
      cls, sep: ids of [CLS] and [SEP].
      max_length: maximum number of ids of a pair, [CLS] and both [SEP] included.
      dynamic: True if the graph takes shorter rows; otherwise all rows have max_length.
    """

    encode: Callable[[str], list[int]]
    cls: int
    sep: int
    max_length: int
    dynamic: bool = False

    def pair(self, reference: str, candidate: str) -> tuple[list[int], list[int]]:
        """Token ids and segment numbers of one pair, without padding."""
        a = self.encode(reference)
        b = self.encode(candidate)
        while len(a) + len(b) > self.max_length - 3:
            (a if len(a) > len(b) else b).pop()
        return [self.cls, *a, self.sep, *b, self.sep], [0] * (len(a) + 2) + [1] * (len(b) + 1)

    def batch(self, references: Sequence[str], candidates: Sequence[str]) -> dict[str, np.ndarray]:
        """Makes the three inputs of the graph for a batch of pairs, each int64 [pairs, length]."""
        pairs = [self.pair(r, c) for r, c in zip(references, candidates, strict=True)]
        length = max(len(ids) for ids, _ in pairs) if self.dynamic else self.max_length
        names = ("input_ids", "input_mask", "segment_ids")
        inputs = {name: np.zeros((len(pairs), length), np.int64) for name in names}
        for row, (ids, segments) in enumerate(pairs):
            for name, values in zip(names, (ids, [1] * len(ids), segments), strict=True):
                inputs[name][row, : len(ids)] = values
        return inputs


def read_config(folder: str | Path) -> tuple[str, Pieces]:
    """Reads the name and tokenisation of a BLEURT checkpoint, without TensorFlow."""
    folder = Path(folder)
    try:
        config = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
        name = str(config["name"])
        max_length = int(config["max_seq_length"])
    except OSError:
        raise PadirError(f"{folder} is no BLEURT checkpoint: it has no {_CONFIG}") from None
    except (ValueError, KeyError, TypeError):
        raise PadirError(f"{folder / _CONFIG} must give name and max_seq_length", remedy=_WHOLE) from None
    if config.get("vocab_file"):
        try:
            words = load_word_pieces(folder / config["vocab_file"], bool(config.get("do_lower_case")))
        except ImportError:
            raise PadirError("BLEURT needs the package tokenizers", remedy="pip install 'padir[bleurt]'") from None

        def encode(text: str) -> list[int]:
            return words.encode(text, add_special_tokens=False).ids

        return name, Pieces(encode, words.token_to_id("[CLS]"), words.token_to_id("[SEP]"), max_length)
    if not config.get("sp_model"):
        raise PadirError(f"{folder / _CONFIG} names neither a vocab_file nor an sp_model", remedy=_WHOLE)
    path = folder / f"{config['sp_model']}.model"
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(path.read_bytes())
    except OSError as error:
        raise PadirError(f"cannot read {path} ({error.strerror})", remedy=_WHOLE) from None
    except RuntimeError:
        raise PadirError(f"{path} is not a SentencePiece model", remedy=_WHOLE) from None
    cls = processor.piece_to_id("[CLS]")
    sep = processor.piece_to_id("[SEP]")
    if processor.unk_id() in (cls, sep):
        raise PadirError(f"the SentencePiece model of {folder} has no [CLS] and [SEP]: it is not BLEURT's")
    return name, Pieces(processor.encode, cls, sep, max_length, bool(config.get("dynamic_seq_length")))


class Bleurt:
    """A loaded checkpoint. `scores` gives a score for each pair; a call gives their mean x 100 (the paper's Table 3).

    >>> bleurt = Bleurt.load("BLEURT-20-D6")  # doctest: +SKIP
    >>> bleurt.scores(["The dog sleeps."], ["The dog is sleeping."])  # doctest: +SKIP
    [0.77]
    """

    def __init__(
        self, name: str, pieces: Pieces, predict: Callable[[dict[str, np.ndarray]], np.ndarray], batch_size: int = 32
    ):
        self.name = name
        self.pieces = pieces
        self.predict = predict
        self.batch_size = batch_size

    @classmethod
    def load(cls, folder: str | Path, batch_size: int = 32) -> Bleurt:
        """Loads a BLEURT checkpoint from a folder.

        Raises:
          PadirError: the folder is no whole BLEURT checkpoint, or TensorFlow or `tokenizers` is not installed.
        """
        name, pieces = read_config(folder)
        return cls(name, pieces, _load_graph(Path(folder)), batch_size)

    def scores(self, references: Sequence[str], candidates: Sequence[str]) -> list[float]:
        """Scores each pair, from about 0 (bad) to 1 (good); pairs of similar length share a batch."""
        order = sorted(range(len(references)), key=lambda i: len(references[i]) + len(candidates[i]))
        results = [0.0] * len(order)
        for begin in range(0, len(order), self.batch_size):
            numbers = order[begin : begin + self.batch_size]
            batch = self.pieces.batch([references[i] for i in numbers], [candidates[i] for i in numbers])
            for i, value in zip(numbers, self.predict(batch).tolist(), strict=True):
                results[i] = value
        return results

    def __call__(self, hypotheses: Iterable[str], references: Iterable[str]) -> Score:
        """The mean score of a test set, times 100."""
        hypotheses, references = lined_up(hypotheses=hypotheses, references=references)
        scores = self.scores(references, hypotheses)
        return Score("bleurt", 100 * sum(scores) / len(scores), f"nrefs:1|checkpoint:{self.name}|scale:100")


def _load_graph(folder: Path) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """The signature of the checkpoint's SavedModel as a function of arrays."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # hides TensorFlow's start-up messages
    try:
        import tensorflow as tf  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise PadirError("BLEURT needs TensorFlow", remedy="pip install 'padir[bleurt]'") from None
    if not any((folder / "variables").glob("variables.data-*")):
        raise PadirError(f"{folder} has no weights (variables/variables.data-*)", remedy=_WHOLE)
    for device in tf.config.list_physical_devices("GPU"):  # else TensorFlow takes the memory that JAX needs
        tf.config.experimental.set_memory_growth(device, True)
    try:
        model = tf.saved_model.load(str(folder))
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise PadirError(f"{folder} holds no whole SavedModel ({type(error).__name__}): take another copy") from None
    if "serving_default" not in model.signatures:
        raise PadirError(f"{folder} is a SavedModel without the signature serving_default: it is not BLEURT's")

    def predict(batch: dict[str, np.ndarray]) -> np.ndarray:
        tensors = {name: tf.constant(value) for name, value in batch.items()}
        found = model.signatures["serving_default"](**tensors)  # `model` keeps the variables alive
        return found["predictions"].numpy()

    return predict


def load_word_pieces(path: Path, lower_case: bool) -> Any:
    """Makes a `tokenizers.Tokenizer` from a `vocab.txt`, which has one piece per line in the order of ids.

    For uncased vocabularies, `lower_case` lower-cases the text and removes accents.

    The pieces equal the pieces of BERT's own tokenizer, with two exceptions: 256 ideographs of extension E (each is a
    piece in BERT's tokenizer), and marks and punctuation of scripts that are newer than Unicode 9.
    """
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise PadirError(f"cannot read the vocabulary {path} ({error.strerror})") from None
    ids = {line.strip(): i for i, line in enumerate(lines) if line.strip()}
    if missing := [piece for piece in (UNKNOWN, "[CLS]", "[SEP]") if piece not in ids]:
        raise PadirError(f"{path} is not a vocabulary of BERT: it lacks {', '.join(missing)}")
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=_LONGEST_WORD))
    tokenizer.normalizer = normalizers.Sequence(
        [
            # BERT keeps private-use characters, which `tokenizers` drops. U+FFFC makes their words unknown, as in BERT.
            normalizers.Replace(Regex(r"\p{Co}"), "\ufffc"),
            normalizers.BertNormalizer(strip_accents=lower_case, lowercase=lower_case),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer
