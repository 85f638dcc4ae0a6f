"""Scores of translated test sets (BLEU, chrF, BLEURT, stutter and others), and significance tests.

Importing this package needs no SacreBLEU, TensorFlow or `tokenizers`: the functions that score or load import them.
"""

from padir.metrics.bleurt import Bleurt
from padir.metrics.non_words import NonWords
from padir.metrics.scores import Score, bleu, chrf, exact_match, length_ratio, score_all, stutter, toy_scores
from padir.metrics.significance import SystemScore, compare

__all__ = [
    "Bleurt",
    "NonWords",
    "Score",
    "SystemScore",
    "bleu",
    "chrf",
    "compare",
    "exact_match",
    "length_ratio",
    "score_all",
    "stutter",
    "toy_scores",
]
