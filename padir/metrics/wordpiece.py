"""BERT's word piece tokenizer (Devlin et al., 2019) for the older BLEURT checkpoints, from the package `tokenizers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from padir.errors import PadirError

UNKNOWN = "[UNK]"
_LONGEST_WORD = 200  # maximum number of characters of a word; longer words become unknown


def load_word_pieces(path: Path, lower_case: bool) -> Any:
    """Makes a `tokenizers.Tokenizer` from a `vocab.txt`, which has one piece per line in the order of ids.

    The pieces equal those of BERT's own tokenizer, with two exceptions: 256 ideographs of extension E, each of which is
    a piece in BERT's tokenizer, and marks and punctuation of scripts that are newer than Unicode 9.

    Args:
      lower_case: lower-case the text and remove accents, for uncased vocabularies.

    Raises:
      ImportError: `tokenizers` is not installed.
      PadirError: the file does not exist, or lacks BERT's special pieces.
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
