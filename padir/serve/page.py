"""The page at /, one self-contained HTML file made of page.html, page.css and page.js."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import re

from padir.reporting.trace_style import STYLE
from padir.serve.engine import Engine

_FILES = importlib.resources.files("padir.serve")
_STYLE = STYLE + (_FILES / "page.css").read_text(encoding="utf-8")
_SCRIPT = (_FILES / "page.js").read_text(encoding="utf-8")

EXAMPLES = {
    "de": (
        "Wo ist der Bahnhof?",
        "Ich habe heute leider keine Zeit.",
        "Kannst du mir bitte morgen beim Umzug helfen?",
    )
}


def _hashed(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The browser may use only this script and this style sheet, and send requests to this server alone.
CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; script-src {_hashed(_SCRIPT)}; style-src {_hashed(_STYLE)}; connect-src 'self';"
    " img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def page(engine: Engine, model: str) -> str:
    """Makes the page as HTML.

    Args:
      model: the model's name.
    """
    card, limits = engine.translator.card, engine.limits
    one_length = card.config.causal or card.config.length_head != "token"
    settings = {
        "model": model,
        "source": card.source_language,
        "target": card.target_language,
        "causal": card.config.causal,
        "num_steps": engine.defaults.num_steps,
        "top_k": engine.defaults.top_k,
        "max_steps": limits.max_steps,
        "max_lengths": 1 if one_length else min(limits.max_lengths, card.config.max_length),
        "max_characters": limits.max_characters,
        "examples": EXAMPLES.get(card.source_language, ()),
    }
    filled = {
        "MODEL": html.escape(model),
        "STYLE": _STYLE,
        "SCRIPT": _SCRIPT,
        # Only "<" can begin a tag that ends the script element.
        "SETTINGS": json.dumps(settings).replace("<", "\\u003c"),
    }
    return re.sub("%([A-Z]+)%", lambda place: filled[place[1]], (_FILES / "page.html").read_text(encoding="utf-8"))
