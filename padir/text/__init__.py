"""Text: ids, tokenizers, lines of files."""
