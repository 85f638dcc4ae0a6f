"""Training data: sources of sentence pairs, prepared folders, mixtures of them, batching, and the toy corpus.

`padir.data.prepare.prepare` writes a prepared folder, and `padir.data.loader.make_loader` reads batches from such a
folder. This package does not export them, because their modules import ArrayRecord and Grain.
"""

from padir.data.plan import Batching
from padir.data.prepared import LengthLimits, Mixture, PreparedManifest, load_manifest, load_tokenizer, read_text
from padir.data.sources import SOURCES, ParallelText, Source, get_source

__all__ = [
    "SOURCES",
    "Batching",
    "LengthLimits",
    "Mixture",
    "ParallelText",
    "PreparedManifest",
    "Source",
    "get_source",
    "load_manifest",
    "load_tokenizer",
    "read_text",
]
