"""Errors that users cause and can fix, each with a message of one sentence.

A message names what was expected, what was found and the remedy. The command line prints it and
exits with `code`; a traceback is shown only on request.
"""

from __future__ import annotations

import difflib
import re
import reprlib
from collections.abc import Iterable

MAX_SHOWN = 160
"""Characters of a value that a message shows."""
MAX_SEED = 2**63 - 1
"""The largest seed that torch takes."""


class MongeError(Exception):
    """Base of all errors shown to users.

    Examples
    --------
    >>> import monge
    >>> try:
    ...     monge.load("no-such-run")
    ... except monge.MongeError as error:
    ...     print(type(error).__name__, error.code)
    RunError 1
    """

    code = 1

    def __str__(self) -> str:
        # names in data may be long, and have several lines
        return " ".join(LONG_WORD.sub(shortened, super().__str__()).splitlines())


class UsageError(MongeError, ValueError):
    """Arguments of a command or a call are wrong.

    Examples
    --------
    >>> import monge
    >>> try:
    ...     monge.fit("no-such-model", "iris")
    ... except monge.UsageError as error:
    ...     print(type(error).__name__, error.code)
    UsageError 2
    """

    code = 2


class DataError(MongeError, ValueError):
    """The data cannot be read, or is not suitable for the request; `settings` are those of the
    data, such as drop=a, or transforms of them, such as +resize64, under which they can.

    Examples
    --------
    >>> import monge
    >>> try:
    ...     monge.fit("transformer", "iris")
    ... except monge.DataError as error:
    ...     print(type(error).__name__, error.code)
    DataError 1
    """

    def __init__(self, sentence: str, *settings: str) -> None:
        super().__init__(sentence)
        self.settings = settings


class RunError(MongeError, RuntimeError):
    """A run directory is missing, damaged, locked or of another format.

    Examples
    --------
    >>> import monge
    >>> try:
    ...     monge.load("no-such-run")
    ... except monge.RunError as error:
    ...     print(type(error).__name__, error.code)
    RunError 1
    """


class LostWorkerError(RunError):
    """Another process of the same fit ended, or failed and says so itself."""


class DivergenceError(MongeError, ArithmeticError):
    """Training produced a value that is not finite.

    Examples
    --------
    >>> import monge
    >>> issubclass(monge.DivergenceError, ArithmeticError)
    True
    """


MAX_PART = 80
"""Characters of a text or a number that a message repeats, alone or inside another value."""
MAX_CHOICES, NEAREST_CHOICES = 12, 5
"""Choices that a message lists in full, and how many of the closest it names if there are more."""
MAX_WORD = 200
"""Characters of a word of the user that a message repeats."""
LONG_WORD = re.compile(rf"\S{{{MAX_WORD + 1},}}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the closest known one, or all of them, or those
    nearest to it if there are many."""
    known, name = list(known), name[:MAX_WORD]
    close = difflib.get_close_matches(name, known, 1, 0.5)
    if close:
        return f"; did you mean {close[0]}?"
    if len(known) > MAX_CHOICES:
        some = difflib.get_close_matches(name, known, NEAREST_CHOICES, 0.0)
        return f"; choose one of {len(known)}, such as {', '.join(some)}"
    return f"; choose from {', '.join(known)}" if known else "; there are no choices"


def shorten_words(sentence: str) -> str:
    """A message in one line, with very long words of the user cut."""
    return " ".join(LONG_WORD.sub(shortened, sentence).split())


def shortened(found: re.Match[str]) -> str:
    """The beginning of a word, and the punctuation after it, which belongs to the sentence."""
    word = found[0]
    end = word[len(word.rstrip("'\"`),:;?")) :]
    return f"{word[: MAX_WORD // 2]}...{end[-3:]}"


def shown(value: object) -> str:
    """`value` for a message; long or deep values are shortened."""
    cut = reprlib.Repr()
    cut.maxstring = cut.maxother = cut.maxlong = MAX_PART
    text = cut.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
