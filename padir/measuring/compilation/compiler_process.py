"""Compiling in a process of its own, because a fault of XLA's compiler may end its process with a signal."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection

from padir.distributed.processes import ignore_absent_tpus
from padir.errors import PadirError
from padir.measuring.compilation.costs import CRASHED, Compiled, analyse
from padir.measuring.compilation.program_list import Program


def analyse_apart(programs: Callable[[], Iterable[Program]], tell: Callable[[str], None]) -> Iterator[Compiled]:
    """Like `costs.analyse`, in another process; if the compiler crashes, a new process goes on with the next program.

    Args:
      programs: makes the programs in that process, so it must be picklable, and give the same programs each time.
      tell: gets the name of each program before it is compiled.

    Raises:
      PadirError: the programs cannot be made.
    """
    context = multiprocessing.get_context("spawn")
    done: list[Compiled] = []
    crashed = True
    while crashed:
        received, sent = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(sent, programs, done), daemon=True)
        child.start()
        sent.close()
        name, began = "", time.perf_counter()
        try:
            while (message := received.recv()) is not None:
                if isinstance(message, PadirError):
                    raise message
                if isinstance(message, Compiled):
                    name = ""
                    done.append(message)
                    yield message
                else:
                    name, began = message, time.perf_counter()
                    tell(name)
            crashed = False
        except EOFError:
            child.join()
            if not name:
                raise PadirError(f"the compiler's process ended before a program ({_end(child.exitcode)})") from None
            done.append(Compiled(name, time.perf_counter() - began, failure=f"{CRASHED} ({_end(child.exitcode)})"))
            yield done[-1]
        finally:
            child.kill()
            child.join()


def _end(exitcode: int | None) -> str:
    return f"status {exitcode}" if exitcode is None or exitcode >= 0 else signal.Signals(-exitcode).name


def _work(sent: Connection, programs: Callable[[], Iterable[Program]], done: list[Compiled]) -> None:
    """Send the name of each program after those that are done, then its figures, and None at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, too, which ends this process
    ignore_absent_tpus()

    def named() -> Iterator[Program]:
        for program in itertools.islice(programs(), len(done), None):
            sent.send(program.name)
            yield program

    try:
        for each in analyse(named(), done):
            sent.send(each)
        sent.send(None)
    except PadirError as error:
        sent.send(error)
