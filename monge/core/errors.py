"""What can go wrong through no fault of the code, each told in one sentence.

A sentence names the thing, the value and the remedy. The command line prints it and leaves with
`code`; a traceback is shown only on request.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable


class MongeError(Exception):
    """A sentence for the user."""

    code = 1


class UsageError(MongeError, ValueError):
    """The words of a command or the arguments of a call are wrong."""

    code = 2


class DataError(MongeError, ValueError):
    """The data cannot be read, or does not fit what is asked of it."""


class RunError(MongeError, RuntimeError):
    """A run folder is missing, damaged, locked or of another format."""


class DivergenceError(MongeError, ArithmeticError):
    """Training produced a value that is not finite."""


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown `word`: the closest known one, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(word, known, 1, 0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; choose from {', '.join(known)}" if known else "; there is none to choose from"


def shown(value: object) -> str:
    """`value` as a sentence shows it: what is long or deep is cut."""
    cut = reprlib.Repr()
    cut.maxstring = cut.maxother = cut.maxlong = 80
    return cut.repr(value)
