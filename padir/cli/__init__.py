"""The command line, `padir COMMAND`.

`main` runs a command. `entry` lists all commands with their modules, `options` adds their options, and `arguments`
turns parsed options into decoding options, models and corpora. The other modules hold the commands, which
call the library and print.
"""

from padir.cli.entry import build_parser, main

__all__ = ["build_parser", "main"]
