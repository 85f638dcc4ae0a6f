"""padir: generative-masked (non-autoregressive) translation in JAX.

    translator = padir.Translator.load()  # German to English; give the directory of a model of your own
    translator.translate(["Der Hund schläft."], num_steps=4)

Each package is one room of the library: `padir.refinement` (the canvas, corruptions, strategies and the loop),
`padir.models`, `padir.decoding`, `padir.training`, `padir.evaluation` and others. `import padir` loads what translating
needs; import the other packages by name.
"""

from padir.decoding.lengths import LengthSearch
from padir.decoding.options import Decoding
from padir.decoding.program_cache import compile_cache
from padir.decoding.search import Beam, Greedy, Sampling
from padir.decoding.shortlist import Shortlist
from padir.decoding.translation import Translation
from padir.decoding.translator import Translator
from padir.distributed.sharding import Sharding
from padir.errors import PadirError

__version__ = "0.1.0"
__all__ = [
    "Beam",
    "Decoding",
    "Greedy",
    "LengthSearch",
    "PadirError",
    "Sampling",
    "Sharding",
    "Shortlist",
    "Translation",
    "Translator",
    "__version__",
    "compile_cache",
]
