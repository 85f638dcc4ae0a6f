"""Support of several tests: fake decoders, tiny models, corpora, faults, servers."""
