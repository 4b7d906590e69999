"""Texts with holes: the texts of a call format are the same in all calls, but for parts such as the name of the tool.

The text around the name in `<function=f>{"a": 1}</function>` is ("<function=", Hole.NAME, ">").
"""

from __future__ import annotations

import enum
from typing import Union


class Hole(enum.Enum):
    """A part of a text that is not the same in all calls."""

    NAME = "the name of the tool or of the argument"
    ID = "an id of a call"
    NUMBER = "a number of one to three digits"
    BREAK = "up to two line breaks; one is written"
    INDENT = "any indentation; none is written"


BREAK = Hole.BREAK
Text = tuple[Union[str, Hole], ...]
"""A text with holes. No two strings are adjacent, and none is empty."""

_WRITTEN = {Hole.ID: "0", Hole.NUMBER: "0", Hole.BREAK: "\n", Hole.INDENT: ""}


def text_of(*parts: str | Hole | Text) -> Text:
    """Join parts of a text."""
    joined: list[str | Hole] = []
    for part in parts:
        for piece in part if isinstance(part, tuple) else (part,):
            if joined and isinstance(joined[-1], str) and isinstance(piece, str):
                joined[-1] += piece
            elif piece:
                joined.append(piece)
    return tuple(joined)


def filled(text: Text, name: str = "") -> str:
    """A text as it is written, with the name of a tool or argument."""
    return "".join(part if isinstance(part, str) else _WRITTEN.get(part, name) for part in text)


def words_of(text: Text) -> tuple[str | Hole, ...]:
    """The words, names and ids of a text, between which the parser accepts any white space."""
    words: list[str | Hole] = []
    for part in text:
        words += part.split() if isinstance(part, str) else [part]
    return tuple(word for word in words if word not in (Hole.BREAK, Hole.INDENT))
