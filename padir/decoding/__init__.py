"""Decoding: from sentences to translations."""
