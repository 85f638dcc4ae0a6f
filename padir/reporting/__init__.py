"""Tables, plots, pages and traces that show results.

`Trace` holds every step of a decoding run; `render_text` and `render_html` show it. `page` makes HTML pages of tables
and pictures, and `tables` makes Markdown and terminal tables, and figures.
"""

from padir.reporting.page import Section, render
from padir.reporting.tables import require_matplotlib
from padir.reporting.trace import Step, Trace, render_html, render_text

__all__ = ["Section", "Step", "Trace", "render", "render_html", "render_text", "require_matplotlib"]
