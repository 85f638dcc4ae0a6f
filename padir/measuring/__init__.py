"""Measurements of speed: timed decoding and training, and programs compiled for chips that this machine lacks."""
