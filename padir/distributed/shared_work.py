"""Work on a list of items that several processes share out among themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from padir.distributed.processes import from_all, padded
from padir.errors import PadirError

T = TypeVar("T")


def shared_out(items: Sequence[T], work: Callable[[T], Any]) -> list[Any]:
    """Results of `work` for all items, in all processes; process I of N works on the items I, I + N, I + 2 N, ...

    All processes must call this function with the same items. With several processes the results travel as JSON, so
    that tuples become lists; a single process returns them as they are.

    Raises:
      Exception: the error of `work` in this process, raised when the other processes have been told.
      PadirError: `work` failed or was interrupted in another process.
    """
    processes = jax.process_count()
    if processes == 1:
        return [work(item) for item in items]
    text, error = "", None
    try:
        text = json.dumps({"done": [work(item) for item in items[jax.process_index() :: processes]]})
    except (Exception, KeyboardInterrupt) as raised:  # any error, because the others wait for an answer
        text, error = json.dumps({"error": str(raised)}), raised
    every = _texts_of_all(text)
    if error is not None:
        raise error
    results: list[Any] = [None] * len(items)
    for process, each in enumerate(map(json.loads, every)):
        if "error" in each:
            raise PadirError(f"process {process} stopped: {each['error'] or 'see what it says'}")
        results[process::processes] = each["done"]
    return results


def _texts_of_all(text: str) -> list[str]:
    content = text.encode()
    sizes = from_all(np.array(len(content), np.int32))
    every = from_all(padded(content, int(sizes.max())))
    return [each[:size].tobytes().decode() for each, size in zip(every, sizes.tolist(), strict=True)]
