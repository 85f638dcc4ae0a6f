"""Options of all commands: a file for each group of commands (`padir.cli.entry.GROUPS`), and one that they share.

The function `NAME_options` adds the options of the command NAME. Its docstring is the command's help page: a sentence,
further help if any, and an example in the last paragraph.
"""
