"""Text that comes from outside, as part of messages of one line."""

from collections.abc import Iterable

MAX_CHARACTERS = 200  # of one name in a message
MAX_NAMES = 20  # in one message


def printable(text: object) -> str:
    """As it is where a terminal can show it, else quoted with escapes."""
    short = _shorten(str(text))
    return short if short.isprintable() else repr(short)


def quote(text: str) -> str:
    return repr(_shorten(text))


def listing(names: Iterable[str]) -> str:
    """Names with commas between them, not more than a reader can take in."""
    all_names = list(names)
    first = ", ".join(printable(name) for name in all_names[:MAX_NAMES])
    left_out = len(all_names) - MAX_NAMES
    return f"{first} and {left_out} more" if left_out > 0 else first


def reason(error: Exception) -> str:
    """What an exception says, in one line."""
    lines = str(error).splitlines()
    if not lines:
        return type(error).__name__
    # The text of a LookupError is the key alone.
    kind = f"{type(error).__name__}: " if isinstance(error, LookupError) else ""
    return kind + printable(lines[0])


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[: MAX_CHARACTERS - 3] + "..."
