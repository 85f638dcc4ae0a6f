"""Scores of translated test sets: BLEU, chrF, stutter and others, BLEURT, and significance tests.

SacreBLEU is imported by the functions that score, TensorFlow and `tokenizers` by those that load a BLEURT checkpoint.
"""

from padir.metrics.bleurt import Bleurt
from padir.metrics.scores import Score, bleu, chrf, exact_match, length_ratio, score_all, stutter, toy_scores
from padir.metrics.significance import SystemScore, compare

__all__ = [
    "Bleurt",
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
