"""Honest timing: several systems in turns in one run, what is timed said, compiling apart."""
