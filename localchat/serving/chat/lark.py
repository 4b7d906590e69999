"""Collects the rules and terminals of one grammar in the notation of llguidance."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .dialects.call_layout import A_BREAK, A_NUMBER, A_SPACE, AN_ID
from .gbnf import regex_literal

_PLACEHOLDERS = {
    A_NUMBER: "[0-9]{1,3}",
    A_BREAK: r"\n{0,2}",
    A_SPACE: r"\n? {0,16}",
    AN_ID: "[A-Za-z0-9_-]{1,64}",
}
ANY = "(?s:.*)"


def layout_regex(text: str) -> str:
    """The regular expression of a text of a call layout, with its placeholders."""
    return "".join(_PLACEHOLDERS.get(char) or regex_literal(char) for char in text)


def seq(*parts: str) -> str:
    return " ".join(filter(None, parts)) or '""'


def containing(*regexes: str) -> str:
    """The texts that contain a match of one of these."""
    return f"/{ANY}({'|'.join(regexes)}){ANY}/"


class Rules:
    """Names equal bodies once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._others: list[str] = []
        self._n_new_names = 0

    def rule(self, body: str) -> str:
        return self._named("rule", body)

    def terminal(self, body: str) -> str:
        """A lexeme: regular expressions between slashes and other terminals, joined by ` `, `|` and `&`."""
        return self._named("T", body)

    def regex(self, regex: str) -> str:
        return self.terminal(f"/{regex}/")

    def free_text(self, markers: Iterable[str], *also: str) -> str:
        """Any text that contains none of the markers, which are regular expressions, and is in all sets of `also`."""
        found = list(dict.fromkeys(markers))
        parts = [f"/{ANY}/", *also, *([f"~{containing(*found)}"] if found else [])]
        return self.terminal(" & ".join(parts))

    def new_name(self, prefix: str) -> str:
        """A new name of a rule, which the caller adds."""
        self._n_new_names += 1
        return f"{prefix}_{self._n_new_names}"

    def add(self, text: str) -> None:
        self._others.append(text)

    def render(self, start: str) -> str:
        lines = [f"start: {start}", *(f"{name}: {body}" for body, name in self._names.items())]
        return "\n".join([*lines, *self._others]) + "\n"

    def _named(self, prefix: str, body: str) -> str:
        if re.fullmatch(r"(rule|T)_\d+", body):
            return body
        return self._names.setdefault(body, f"{prefix}_{len(self._names)}")
