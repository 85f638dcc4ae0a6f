"""Measurements of speed: timed decoding and training, and programs compiled for chips that need not be here."""
