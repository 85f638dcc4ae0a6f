"""Runs one parsed command, with its configuration, exit status and error messages."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from padir.cli.arguments import import_module
from padir.cli.console import log_to_stderr, tell, without_controls
from padir.cli.listing import config_file
from padir.decoding.program_cache import compile_cache
from padir.distributed.processes import agreed, from_first, ignore_absent_tpus, is_first, join
from padir.errors import PadirError, cut, first_line
from padir.reporting.patience import stop_signals, tell_of_compiling, told_of_stopping
from padir.storage.files import check_local, check_writable, is_address, write_json
from padir.storage.remote import RemoteFolder, Unreachable, fetched

_ADDRESSES = ("data", "model", "model_dir", "rerank", "start_from")  # options that may be addresses
_RESULTS = ("output", "json", "html")  # options that name files of results
_TABLES = (".md", ".json", ".png")  # the files of an option NAME


def run(args: argparse.Namespace, bindings: Sequence[str]) -> int:
    """Run a command and return its exit status; bad input ends with a message on stderr."""
    ignore_absent_tpus()
    compile_cache()
    tell_of_compiling()
    log_to_stderr()
    try:
        with _interrupted_by_signals(), told_of_stopping():
            _run(args, bindings)
    except PadirError as error:
        return _fail(str(error), 1 if isinstance(error, Unreachable) else 2)
    except BrokenPipeError:
        _discard_output()
        return 141
    except (MemoryError, RuntimeError) as error:  # XLA's error for too little memory is a RuntimeError
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _fail(f"out of memory ({first_line(error)}): {_less_memory(args)}")
    except OSError as error:
        _discard_output()
        return _fail(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    return getattr(args, "status", 0)


@contextlib.contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt the block as Ctrl-C does, so that half-written files are removed."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    with contextlib.suppress(ValueError):  # raised outside the main thread: the caller handles signals
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if signal.SIGHUP in stop_signals():
            signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            for number, handler in before.items():
                if handler is not None:  # None: not Python's
                    signal.signal(number, handler)


def _run(args: argparse.Namespace, bindings: Sequence[str]) -> None:
    """Parse gin's configuration, run the command, and write its results as JSON.

    Options win over bindings of the command line, which win over files. Beside the command line's options, `args` has
    what parsers set (`paths`, `settings`, `sends`, `binds`: files, and where options belong; `module`: the command's),
    and what is set here (`gin_file` with the files' places, `bindings`, `gin`: there is a configuration; `data` and
    `model_dir` as local copies). A command may set `status`, its exit status.
    """
    _check_addresses(args)
    _check_inputs(args)
    args.gin_file = [config_file(name) for name in (*getattr(args, "configs", ()), *args.gin_file)]
    values = {binding: getattr(args, option) for option, binding in getattr(args, "binds", {}).items()}
    options = [f"{name}={value!r}" for name, value in values.items() if value is not None]
    for name in args.allow_imports:
        import_module(name, "--allow_imports")
    args.bindings = bindings
    args.gin = bool(args.gin_file or bindings or args.command == "train")
    if args.gin:
        from padir import config

        config.parse(args.gin_file, [*bindings, *options], allow_imports=args.allow_imports)
    several = bool(getattr(args, "coordinator", None))
    if several:
        _join(args.coordinator)
        from_first(lambda: _check_results(args))
        agreed("the folders", lambda: _fetch(args), lambda _: "")
    else:
        _check_results(args)
        _fetch(args)
    module = importlib.import_module(f"padir.cli.{args.module}")
    results = getattr(module, f"run_{args.command}")(args)
    if args.json and results is not None and (not several or is_first()):  # else they are written already
        write_json(args.json, results)
    if args.gin:
        from padir import config

        config.check_overrides()
    _flush()


def _less_memory(args: argparse.Namespace) -> str:
    """The remedy for too little memory, which in training leaves the batches as large as they are."""
    if args.command == "train" or (args.command == "benchmark" and args.steps):
        return "take fewer rows at a time, with --gin.Batching.accumulation_steps=2 (or 4, 8)"
    return "use smaller batches, or shorter rows"


def _check_results(args: argparse.Namespace) -> None:
    """Check that files of results, and folders at addresses, can be written, before any work."""
    for name in _RESULTS + (("model_dir",) if args.command == "train" else ()):
        path = getattr(args, name, None)
        if path is not None and is_address(path):
            if not getattr(args, "print_config", False):
                RemoteFolder.at(path).check_writable()
        elif path is not None and name != "model_dir":
            is_file = args.paths[name] == "FILE"
            check_writable(path, file=is_file)
            folder = Path(path).absolute().parent
            if is_file and not folder.exists():
                tell(f"padir: {folder} does not exist, and will be made")


def _paths(args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """The files and folders that the command line names, with the names of their options."""
    for name, shape in args.paths.items():
        value = getattr(args, name) or []
        for path in value if isinstance(value, list) else [value]:
            if not os.path.exists(path) and os.path.exists(file := path.partition("=")[2]):
                path = file  # of NAME=FILE
            yield from ((name, f"{path}{end}") for end in (_TABLES if shape == "NAME" else ("",)))


def _check_inputs(args: argparse.Namespace) -> None:
    """Refuse files of results that are files of the command's input, or of other results."""
    taken: dict[str | tuple[int, int], str] = {}
    for name, path in sorted(_paths(args), key=lambda each: each[0] in _RESULTS):  # inputs first
        if os.path.isfile(path):
            status = os.stat(path)
            first = taken.setdefault((status.st_dev, status.st_ino), name)
        elif name in _RESULTS:
            first = taken.setdefault(os.path.realpath(path), name)
        else:
            continue
        if name in _RESULTS and first != name:
            raise PadirError(f"--{name} {path} would replace the file of --{first}: give another file")


def _check_addresses(args: argparse.Namespace) -> None:
    """Refuse addresses such as gs://bucket/run for options that take local files, and unknown addresses everywhere."""
    for name, path in _paths(args):
        if name not in _ADDRESSES and not (name == "output" and args.sends):
            check_local(path)
        elif is_address(path):
            RemoteFolder.at(path)


def _fetch(args: argparse.Namespace) -> None:
    """Fetch folders that are at addresses, and put their copies' names into the arguments.

    `padir.pretrained.model_folder` fetches models, and `padir.training.loop.train` the run that it continues.
    """
    if getattr(args, "print_config", False):
        return
    for name, steps in {"data": False, **({"model_dir": True} if args.command == "average" else {})}.items():
        if value := getattr(args, name, None):
            several = isinstance(value, list)
            copies = [str(fetched(each, steps=steps)) for each in (value if several else [value])]
            setattr(args, name, copies if several else copies[0])


def _join(coordinator: str) -> None:
    """Join the other processes of the command, before anything asks for a device."""
    address, *numbers = coordinator.split(",")
    if len(numbers) not in (0, 2) or not all(number.isdecimal() for number in numbers):
        expected = "HOST:PORT,N,I (the first process's address, how many there are, the number of this one), or auto"
        raise PadirError("coordinator", expected, coordinator)
    join(address, *map(int, numbers))


def _flush() -> None:
    """Flush standard output now, because a failure at the end of the process would print a traceback."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_output() -> None:
    """Discard output that standard output no longer accepts, because Python would try to write it again at exit."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int = 2) -> int:
    print(f"padir: error: {without_controls(cut(message, 2_500))}", file=sys.stderr)
    return status
