"""Text and token ids: special ids, SentencePiece vocabularies, and reading lines of files."""

from padir.text.ids import EOS, PADDING, UNK, Ids
from padir.text.lines import byte_lines, open_bytes
from padir.text.tokenizer import Tokenizer, train

__all__ = ["EOS", "PADDING", "UNK", "Ids", "Tokenizer", "byte_lines", "open_bytes", "train"]
