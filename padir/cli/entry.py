"""`main`: run one command of the command line, with its configuration, exit status and error messages.

Every command takes gin configuration (--gin_file FILE, --gin.NAME=VALUE, --gin_search_paths DIR) and --json FILE for
its results.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import jax

from padir.cli.commands import build_parser
from padir.cli.completion import script
from padir.cli.console import own_words, tell, without_controls
from padir.decoding.program_cache import compile_cache
from padir.distributed.platforms import ignore_absent_tpus
from padir.errors import PadirError, first_line
from padir.reporting.patience import tell_of_compiling, told_of_stopping
from padir.storage.files import check_local, check_writable, is_address, write_json
from padir.storage.remote import RemoteFolder, Unreachable

_GIN = "--gin."
# Options that may be addresses, and commands whose --output may be one.
_ADDRESSES = ("data", "model", "model_dir", "checkpoints", "rerank")
_SENDING = ("prepare", "distill", "average")
_INTERRUPTED = 130  # exit status, as of shells
# Options that set a parameter of another name; `padir vocab` has a --size of its own.
_OPTIONS = {"size": ("size", "beam"), "alpha": ("length_penalty",), "temperature": ("sample",)}


def command() -> NoReturn:
    """Run the command of this process, and exit with its status.

    An interrupted process exits at once: a program that XLA was compiling would hold up the exit and then crash it.
    Several processes exit in the ordinary way, which lets them leave each other in order.
    """
    status = main()
    if status == _INTERRUPTED and not jax.distributed.is_initialized():
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(status)
    sys.exit(status)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
      argv: words after `padir`; None for the words of this process.

    Returns:
      The exit status: 0, 1 if `padir compile` found a program that does not fit or an address cannot be reached, 2 for
      bad input (with a message on stderr), 130 after Ctrl-C, 141 if the reader of standard output is gone.

    >>> main(["vocab", "--task", "toy_de_en", "--size", "-5", "--output", "x.model"])
    2
    """
    words = list(sys.argv[1:] if argv is None else argv)
    bindings = [word.removeprefix(_GIN) for word in words if word.startswith(_GIN)]
    words = [word for word in words if not word.startswith(_GIN)]
    parser = build_parser(words[:1])
    args = parser.parse_args(words)
    if args.command is None and not args.print_completion:
        parser.print_help(sys.stderr)
        return 2
    ignore_absent_tpus()
    compile_cache()
    tell_of_compiling()
    with contextlib.suppress(ValueError):  # raised outside the main thread: the caller handles signals
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that half-written files are removed
    try:
        with told_of_stopping():
            if args.print_completion:
                print(script(build_parser(), args.print_completion))
                _flush()
            else:
                _run(args, bindings)
    except PadirError as error:
        return _fail(str(_with_option(error, args)), 1 if isinstance(error, Unreachable) else 2)
    except BrokenPipeError:
        _discard_output()
        return 141
    except (MemoryError, RuntimeError) as error:  # XLA's error for too little memory is a RuntimeError
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _fail(f"out of memory ({first_line(error)}): use smaller batches, or shorter rows")
    except OSError as error:
        _discard_output()
        return _fail(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except KeyboardInterrupt as interrupt:
        saved = own_words(str(interrupt))
        print(f"padir: stopped{': ' + saved if saved else ''}", file=sys.stderr)
        return _INTERRUPTED
    return getattr(args, "status", 0)


def _run(args: argparse.Namespace, bindings: Sequence[str]) -> None:
    """Parse the gin configuration, run the command and write its results as JSON."""
    _check_addresses(args)
    args.bindings = bindings
    args.gin = bool(args.gin_file or bindings or args.command == "train")
    if args.gin:
        from padir import config

        config.parse(args.gin_file, bindings, args.gin_search_paths, args.allow_imports)
    if hasattr(args, "coordinator"):
        _join(args)
    if getattr(args, "coordinator", None):
        from padir.distributed.processes import from_first

        from_first(lambda: _check_results(args))
    else:
        _check_results(args)
    results = args.run(args)
    if args.json and results is not None and _is_first(args):  # else a command or another process has written them
        write_json(args.json, results)
    _flush()


def _check_results(args: argparse.Namespace) -> None:
    """Check that the files of results can be written, before any work."""
    for name in ("output", "json", "html", "hypotheses"):
        path = getattr(args, name, None)
        if isinstance(path, str) and not is_address(path):  # `compare` reads several --hypotheses
            check_writable(path, file=name != "output")
            if name != "output" or args.command == "translate":
                _tell_of_new_folder(Path(path).absolute().parent)


def _check_addresses(args: argparse.Namespace) -> None:
    """Refuse addresses such as gs://bucket/run where only files are read or written, and unknown ones everywhere."""
    for name, value in vars(args).items():
        for word in value if isinstance(value, list) else [value]:
            if name == "texts" or not isinstance(word, str):  # a sentence may begin with an address
                continue
            if name in _ADDRESSES or (name == "output" and args.command in _SENDING):
                if is_address(word):
                    RemoteFolder.at(word)
            else:
                check_local(word)


def _tell_of_new_folder(folder: Path) -> None:
    if not folder.exists():
        tell(f"padir: {folder} does not exist, and will be made")


def _join(args: argparse.Namespace) -> None:
    """Join the other processes of the command, before anything asks for a device."""
    if args.coordinator:
        from padir.distributed.processes import join

        join(args.coordinator, args.num_processes, args.process_id)
    elif args.num_processes is not None or args.process_id is not None:
        raise PadirError("--num_processes and --process_id need --coordinator HOST:PORT, at which processes meet")


def _is_first(args: argparse.Namespace) -> bool:
    """Tell whether this process is the one that writes files."""
    if not getattr(args, "coordinator", None):
        return True
    from padir.distributed.processes import is_first

    return is_first()


def _with_option(error: PadirError, args: argparse.Namespace) -> PadirError:
    """Replace a parameter in an error by the command-line option that sets it, if the option's value was refused."""
    parameter = error.what.rpartition(".")[2]
    for option in _OPTIONS.get(parameter, (parameter,)):
        given = getattr(args, option, None)
        if given is not None and error.got in (given if isinstance(given, list) else [given]):
            return error.renamed(f"--{option}")
    return error


def _flush() -> None:
    """Flush standard output now, as a failure at the end of the process would print a traceback."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_output() -> None:
    """Discard output that standard output no longer accepts, or Python would try to write it again at exit."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int = 2) -> int:
    print(f"padir: error: {without_controls(own_words(message))}", file=sys.stderr)
    return status
