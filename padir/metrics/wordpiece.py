"""BERT's word pieces (Devlin et al., 2019) for the older BLEURT checkpoints, by the package `tokenizers`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from padir.errors import PadirError

UNKNOWN = "[UNK]"
_LONGEST_WORD = 200  # characters; longer words are unknown


def load_word_pieces(path: Path, lower_case: bool) -> Any:
    """Reads a `vocab.txt` (one piece a line, its line number its id) as a `tokenizers.Tokenizer`.

    The pieces are those of BERT's own tokenizer but for 256 ideographs of extension E, which stand alone there, and for
    marks and punctuation of scripts that are newer than Unicode 9.

    Args:
      lower_case: lower-case the text and take its accents off, for uncased vocabularies.

    Raises:
      ImportError: `tokenizers` is not installed.
      PadirError: no such file, or one that lacks BERT's special pieces.
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
            # BERT keeps private-use characters, `tokenizers` drops them: U+FFFC makes their words unknown, too.
            normalizers.Replace(Regex(r"\p{Co}"), "\ufffc"),
            normalizers.BertNormalizer(strip_accents=lower_case, lowercase=lower_case),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer
