"""The one exception that the command line turns into a short message and exit status 2."""


class PadirError(ValueError):
    """Bad input: the message says what was expected, what was got and what to do."""
