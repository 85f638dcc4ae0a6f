"""`python -m padir`, the same as the command `padir`."""

from padir.cli.entry import command

if __name__ == "__main__":
    command()
