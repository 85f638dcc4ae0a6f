"""padir: generative-masked (non-autoregressive) translation in JAX.

    translator = padir.Translator.load()  # German to English; give the directory of a model of your own
    translator.translate(["Der Hund schläft."], num_steps=4)

The modules are the library: `padir.refine` (the loop), `padir.strategies`, `padir.corruption`, `padir.canvas`,
`padir.model`, `padir.translate`; `padir.trainer` and `padir.evaluation` bring more with them and are imported by name.
"""

from padir.decoding import Decoding
from padir.errors import PadirError
from padir.length import LengthSearch
from padir.searches import Beam, Greedy, Sampling
from padir.sharding import Sharding
from padir.shortlist import Shortlist
from padir.translate import Translation, Translator

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
]
