"""Progress of a distillation: a bar on a terminal, else a line a minute."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import rich.console
import rich.progress


@contextlib.contextmanager
def distill_progress(total: int, show: bool) -> Iterator[Callable[[int, bool], None]]:
    """Shows the progress of a distillation on stderr.

    Args:
      total: number of sentences.
      show: False shows nothing.

    Yields:
      advance(count, fresh), to be called with the number of further sentences that are done; fresh=False marks
      sentences from an earlier call, which do not count in the rate.
    """
    console = rich.console.Console(stderr=True)
    with rich.progress.Progress(
        rich.progress.TextColumn("[bold]distill"),
        rich.progress.BarColumn(),
        rich.progress.MofNCompleteColumn(),
        rich.progress.TextColumn("{task.fields[rate]}"),
        rich.progress.TimeRemainingColumn(),
        console=console,
        disable=not (show and console.is_terminal),
    ) as bar:
        task = bar.add_task("distill", total=total, rate="")
        began = told = time.monotonic()
        done = found = 0

        def advance(count: int, fresh: bool) -> None:
            nonlocal began, done, found, told
            done += count
            now = time.monotonic()
            if not fresh:
                began, found = now, done
            rate = (done - found) / max(now - began, 1e-9)
            bar.update(task, completed=done, rate=f"{rate:,.1f} sentences/s")
            if show and not console.is_terminal and (now - told > 60 or done == total):
                told = now
                left = f", {(total - done) / rate / 60:,.0f} min left" if rate and done < total else ""
                line = f"distill: {done:,} of {total:,} sentences, {rate:,.1f} a second{left}"
                console.print(line, highlight=False, soft_wrap=True)

        yield advance
