"""Errors that users cause and can fix, each with a message of one sentence.

A message names what was expected, what was found and the remedy. The command line prints it and
exits with `code`; a traceback is shown only on request.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable


class MongeError(Exception):
    """Base of all errors shown to users."""

    code = 1


class UsageError(MongeError, ValueError):
    """Arguments of a command or a call are wrong."""

    code = 2


class DataError(MongeError, ValueError):
    """The data cannot be read, or is not suitable for the request."""


class RunError(MongeError, RuntimeError):
    """A run directory is missing, damaged, locked or of another format."""


class DivergenceError(MongeError, ArithmeticError):
    """Training produced a value that is not finite."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest known one, or all of them."""
    known = list(known)
    close = difflib.get_close_matches(name, known, 1, 0.5)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; choose from {', '.join(known)}" if known else "; there are no choices"


def shown(value: object) -> str:
    """`value` for a message; long or deep values are shortened."""
    cut = reprlib.Repr()
    cut.maxstring = cut.maxother = cut.maxlong = 80
    return cut.repr(value)
