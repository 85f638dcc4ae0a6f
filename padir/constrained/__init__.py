"""Constrained translation: spans, terms and fixed text that a translation must hold.

Each module wraps a `padir.decoding.sentences.SentenceTranslator`: it calls its methods,
and reads its card, its tokenizer and its `LoadedModel`.
"""
