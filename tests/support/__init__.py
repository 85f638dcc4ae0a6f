"""What tests share: fake decoders, tiny models, corpora, faults, servers."""
