"""Training on many devices and hosts: sharding of parameters and batches, and communication between processes."""

from padir.distributed.processes import (
    Vote,
    agreed,
    arrays_from_first,
    from_first,
    gathered,
    is_first,
    join,
)
from padir.distributed.sharding import Sharding, of_state, on_host, process_rows

__all__ = [
    "Sharding",
    "Vote",
    "agreed",
    "arrays_from_first",
    "from_first",
    "gathered",
    "is_first",
    "join",
    "of_state",
    "on_host",
    "process_rows",
]
