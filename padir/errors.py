"""The one exception that the command line turns into a short message and exit status 2, and others within its text."""


class PadirError(ValueError):
    """Bad input: the message says what was expected, what was got and what to do."""


def first_line(error: Exception) -> str:
    """What an error of another library says, short enough for a message."""
    line = (str(error).splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 240 else f"{line[:120]} ... {line[-120:]}"  # what the system said stands at the end
