"""Processes with many devices that do one job after the other, so that JAX is started only once in each."""

import contextlib
import io
import json
import os
import select
import socket
import subprocess
import sys
import traceback
import unittest.mock
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ANSWER_SECONDS = 300  # a job that takes longer hangs: the other process of a pair may have failed


def environment_with(devices: int) -> dict[str, str]:
    """The environment of a process that is to believe that it has so many devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={devices}"
    return {**os.environ, "XLA_FLAGS": flags}


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def changed(command: Iterable[object], options: tuple[str, ...]) -> list[str]:
    """A command with these options, of the form --NAME=VALUE, in place of its own of the same names."""
    names = tuple(f"{option.partition('=')[0]}=" for option in options)
    return [word for word in map(str, command) if not names or not word.startswith(names)] + [*options]


class Worker:
    """A process that believes to have so many devices.

    Its jobs are `train_as`, `translate_as` and `to_host` of `support.many_devices`, and commands of padir.
    """

    def __init__(self, devices: int, *meeting: object):
        command, tests = [sys.executable, "-m", "support.workers", *map(str, meeting)], Path(__file__).parents[1]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        self.process = subprocess.Popen(command, cwd=tests, env=environment_with(devices), **pipes)

    def start(self, *job: object) -> None:
        self.process.stdin.write(json.dumps([*map(str, job)]) + "\n")

    def result(self) -> tuple[int | None, str]:
        """What the job returned, and what it said on stderr. A process that does not answer is killed."""
        answers, _, _ = select.select([self.process.stdout], [], [], ANSWER_SECONDS)
        line = self.process.stdout.readline() if answers else ""
        if not line:
            self.close()
            raise AssertionError(f"no answer in {ANSWER_SECONDS} seconds" if not answers else "the process ended")
        returned, said = json.loads(line)
        assert not isinstance(returned, str), returned
        return returned, said

    def do(self, *job: object) -> None:
        self.start(*job)
        self.result()

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Pair:
    """Two workers that have joined, and run commands of padir together."""

    def __init__(self, devices: int):
        port = free_port()
        self.workers, self.port = [Worker(devices, port, i) for i in range(2)], port

    def start(self, *command: object, second: tuple[str, ...] = ()) -> None:
        """Starts a command; `second` are options with which the second process differs."""
        for i, worker in enumerate(self.workers):
            arguments = changed(command, second * i)
            worker.start("padir", *arguments, f"--coordinator=localhost:{self.port},2,{i}")

    def wait(self) -> tuple[list[int], list[str]]:
        """The exit statuses, and what was said on stderr. If one job fails, both processes are out of step and end."""
        try:
            (first, said), (second, also) = (worker.result() for worker in self.workers)
        except AssertionError:
            self.close()
            raise
        return [first, second], [said, also]

    def run(self, *command: object, second: tuple[str, ...] = ()) -> tuple[list[int], list[str]]:
        self.start(*command, second=second)
        return self.wait()

    @property
    def running(self) -> bool:
        return all(worker.running for worker in self.workers)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


def of_devices(make: Callable[[int], T]) -> Iterator[Callable[[int], T]]:
    """A fixture's value: gives what `make` makes for a number of devices, and makes it again only if it has ended."""
    made: dict[int, Any] = {}

    def get(devices: int) -> T:
        if devices not in made or not made[devices].running:
            made[devices] = make(devices)
        return made[devices]

    yield get
    for each in made.values():
        each.close()


def work(*meeting: str) -> None:
    """Does the jobs that come as lines on stdin, and answers each with a line on stdout.

    Args:
      meeting: the port at which two processes meet, and the number of this one; none for a process that works alone.
    """
    from padir.distributed.processes import join

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    if meeting:  # before JAX is used, as modules do that are imported for jobs
        join(f"localhost:{meeting[0]}", 2, int(meeting[1]))
    from support.many_devices import to_host, train_as, translate_as

    from padir.cli import main

    jobs = {"train": train_as, "translate": translate_as, "to_host": to_host, "padir": lambda *words: main(words)}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        said, nothing = io.StringIO(), unittest.mock.patch("jax.distributed.initialize")
        with nothing, contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            try:
                returned = jobs[name](*arguments)
            except BaseException:
                returned = traceback.format_exc()
        print(json.dumps([returned, said.getvalue()]), file=answers, flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
