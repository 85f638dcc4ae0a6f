"""padir: generative-masked (non-autoregressive) translation in JAX.

    translator = padir.Translator.load()  # German to English; give the directory of a model of your own
    translator.translate(["Der Hund schläft."], num_steps=4)

The packages are `padir.refinement` (the canvas, corruptions, strategies and the loop), `padir.models`,
`padir.decoding`, `padir.training`, `padir.evaluation` and others. `import padir` loads none of them. The names of
`padir` load what translating needs when they are first used. Import the other packages by name.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from padir.decoding.options import Decoding
    from padir.decoding.program_cache import compile_cache
    from padir.decoding.shortlist import Shortlist
    from padir.decoding.translation import Translation
    from padir.distributed.sharding import Sharding
    from padir.errors import PadirError
    from padir.translator import Translator

__version__ = "0.1.0"
__all__ = [
    "Decoding",
    "PadirError",
    "Sharding",
    "Shortlist",
    "Translation",
    "Translator",
    "__version__",
    "compile_cache",
]
_MODULES = {
    "Decoding": "decoding.options",
    "PadirError": "errors",
    "Sharding": "distributed.sharding",
    "Shortlist": "decoding.shortlist",
    "Translation": "decoding.translation",
    "Translator": "translator",
    "compile_cache": "decoding.program_cache",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"padir.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
