"""Where text comes from and how it becomes batches: sources, the toy corpus, preparing, the loader, seqio Tasks."""
