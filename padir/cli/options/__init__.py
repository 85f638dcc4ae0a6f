"""Options of all commands: a file for each group of commands (`padir.cli.entry.GROUPS`), and one that they share."""
