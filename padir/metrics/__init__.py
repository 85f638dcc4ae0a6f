"""Scores of translated test sets (BLEU, chrF, BLEURT, stutter and others), and significance tests.

Importing this package does not import SacreBLEU, TensorFlow or `tokenizers`: only the functions that need them do.
"""

from padir.metrics.bleurt import Bleurt
from padir.metrics.scores import NonWords, Score, bleu, chrf, exact_match, length_ratio, score_all, stutter, toy_scores
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
