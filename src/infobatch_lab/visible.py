"""Texts and values of others, as they may be shown: on one line, and not too long.

A name in a file may hold an escape sequence for the terminal, a line break, half of a surrogate
pair, or a hundred thousand characters.
"""

from __future__ import annotations

from reprlib import Repr
from typing import Any

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"  # not printable to Python, but harmless

_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = 60


def visible(text: str, most: int = 1000) -> str:
    r"""The text with escapes for what does not print, and with a gap where it is too long.

    >>> visible("red\x1b[31m"), visible("\ud800"), visible("a\nb")
    ('red\\x1b[31m', '\\ud800', 'a\\nb')
    >>> visible("abcdefghij", most=5)
    'abc…j'
    """
    if len(text) > most:  # the end of a path or of a sentence says more than its middle
        end = most // 4
        text = f"{text[: most - end - 1]}…{text[len(text) - end :]}"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == NO_BREAK_SPACE else _escaped(c) for c in text)


def short(value: Any) -> str:
    """The value as Python writes it, cut where it is long.

    >>> short("abc"), short(list(range(100)))
    ("'abc'", '[0, 1, 2, 3, 4, 5, ...]')
    """
    return _REPR.repr(value)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
