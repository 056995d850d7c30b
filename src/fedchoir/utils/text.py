"""Text from another site or from the server, made safe to print and to log."""

LIMIT = 500


def printable(text: str, limit: int = LIMIT) -> str:
    r"""The text in one line of at most ``limit`` characters. Characters that control a terminal, break the line or
    change the direction of writing are escaped, so that nobody can forge a line of a log.

    >>> printable("left out\n12:00 round 7: all is \x1b[32mwell")
    'left out\\n12:00 round 7: all is \\x1b[32mwell'
    """
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
