"""Constrained translation: spans, terms and fixed text that a translation must hold.

Each module wraps `padir.decoding.sentences.SentenceTranslator` by its public verbs alone.
"""
