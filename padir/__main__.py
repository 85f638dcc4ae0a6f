"""`python -m padir`, the same as the command `padir`."""

import sys

from padir.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
