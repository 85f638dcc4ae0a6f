"""The command line: `padir vocab | prepare | train | average | distill | translate | evaluate | tables | ...`.

It parses, calls and prints. Every command takes gin configuration (--gin_file FILE, --gin.NAME=VALUE,
--gin_search_paths DIR) and --json FILE for its figures. Bad input ends with a short message on stderr and status 2.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from padir import __version__
from padir.cli import analysing as studying
from padir.cli import benchmarking, data, evaluating, exchanging, training, translating
from padir.cli.console import own_words
from padir.errors import PadirError
from padir.storage.files import check_writable, write_json

_GIN = "--gin."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="padir", description="Generative-masked translation: draft, then refine.")
    parser.add_argument("--version", action="version", version=f"padir {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (data, training, translating, evaluating, benchmarking, exchanging, studying):
        module.add(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; returns its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    bindings = [a.removeprefix(_GIN) for a in arguments if a.startswith(_GIN)]
    args = _parser().parse_args([a for a in arguments if not a.startswith(_GIN)])
    _keep_compiled_programs()
    with contextlib.suppress(ValueError):  # not the main thread: whoever runs us handles signals
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that what is half-written is taken away
    try:
        args.gin = bool(args.gin_file or bindings or args.command == "train")
        if args.gin:
            from padir import config

            config.clear()
            config.parse(args.gin_file, bindings, args.gin_search_paths)
        if args.command == "train":
            _join(args)
        if not getattr(args, "coordinator", None):  # else the other processes would wait for one that has stopped
            for name in ("output", "json", "html", "hypotheses"):
                if isinstance(path := getattr(args, name, None), str):  # `compare` reads several --hypotheses
                    check_writable(path, file=name != "output")
        figures = args.run(args)
        if args.json and figures is not None and _is_first(args):  # else a command or a process has written them
            write_json(args.json, figures)
        _flush()
    except PadirError as error:
        return _fail(str(error))
    except BrokenPipeError:
        _discard_output()
        return 141
    except OSError as error:
        _discard_output()
        return _fail(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
    except KeyboardInterrupt as interrupt:
        saved = own_words(str(interrupt))
        print(f"padir: stopped{': ' + saved if saved else ''}", file=sys.stderr)
        return 130
    return 0


def _join(args: argparse.Namespace) -> None:
    """Joins the other processes of a training, if it has several; before anything asks for a device."""
    if args.coordinator:
        from padir.distributed.processes import join

        join(args.coordinator, args.num_processes, args.process_id)
    elif args.num_processes is not None or args.process_id is not None:
        raise PadirError("--num_processes and --process_id need --coordinator HOST:PORT, at which processes meet")


def _is_first(args: argparse.Namespace) -> bool:
    """Whether this process is the one that writes files."""
    if not getattr(args, "coordinator", None):
        return True
    from padir.distributed.processes import is_first

    return is_first()


def _flush() -> None:
    """Writes what is left for standard output: at the end of the process, a failure would be a traceback."""
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_output() -> None:
    """Lets nothing more be written to a standard output that takes nothing more, as the exit would try."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _keep_compiled_programs() -> None:
    """Lets JAX keep what it compiles, so that the next command need not; JAX_COMPILATION_CACHE_DIR says where else."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # an empty one keeps nothing
        return
    import jax

    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    jax.config.update("jax_compilation_cache_dir", str(cache / "padir" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _fail(message: str) -> int:
    print(f"padir: error: {own_words(message)}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
