"""Plots with matplotlib: a check of its installation, colours, and figures in padir's style.

matplotlib comes with the extra `plot`; it is imported only when something is drawn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from padir.errors import PadirError

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # also distinct to the colour-blind


def require_matplotlib() -> None:
    """Checks that plots can be drawn; called before the work whose results are plotted.

    Raises:
      PadirError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise PadirError("plots need matplotlib: pip install 'padir[plot]'") from None


@contextlib.contextmanager
def styled_figure(**style: Any) -> Iterator[Any]:
    """A new matplotlib figure, to be drawn and saved within the context.

    Args:
      style: matplotlib's rc parameters, with underscores for dots (`font_size=9`).

    Raises:
      PadirError: matplotlib is not installed.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    chosen: dict[Any, Any] = {name.replace("_", "."): value for name, value in style.items()}
    with matplotlib.rc_context({"axes.spines.top": False, "axes.spines.right": False, **chosen}):
        yield Figure(layout="constrained")
