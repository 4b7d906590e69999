"""Keeps the texts of a request from yielding control tokens, by private markers, as images have.

Before a template is rendered, markers are put around each text of a control token in the strings of the request. The
template prints the markers with the strings. In the rendered prompt, a control token between two markers is literal
text, and every other one belongs to the template.

Markers are also put where a string ends in the middle of a control token: the template or another string could print
the rest of it. A control token with a marker inside it is literal text; in other places, such a marker has no effect.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from ...core.text import pattern_of

# Digits, which no filter for upper or lower case changes, and which no client knows.
_SECRET = str(10**18 + secrets.randbelow(9 * 10**18))
_START, _END = _SECRET + "1", _SECRET + "2"
_MARKER = re.compile(f"({_SECRET}[12])")

TextPart = tuple[str, bool]
"""A text to tokenize, and whether the texts of control tokens in it become control tokens."""


class ControlTokens:
    """The control tokens of a vocabulary."""

    def __init__(self, texts: Iterable[str]) -> None:
        texts = sorted({*texts} - {""})
        self._pattern = re.compile(pattern_of(texts))
        self._longest = max(map(len, texts), default=0)
        # The characters with which tokens begin and end.
        self._firsts, self._lasts = {text[0] for text in texts}, {text[-1] for text in texts}
        # The beginnings and the ends of tokens, and all their parts without the last character; parts with it are ends.
        # Of the token <s>: the beginnings "<" and "<s", the ends "s>" and ">", the inner parts "<", "<s" and "s".
        self._beginnings = {text[:n] for text in texts for n in range(1, len(text))}
        self._ends = {text[n:] for text in texts for n in range(1, len(text))}
        self._inner_parts = {text[n:] for text in self._beginnings for n in range(len(text))}

    def marked(self, value: Any, template_words: frozenset[str] = frozenset()) -> Any:
        """A copy of a JSON value with markers in its strings.

        A string that is a part of a control token gets a marker too, unless it is one of `template_words`, with which
        the template may compare it. With [ and ] for the two markers, and the control token <s>:

            "a <s> b"    "a [<s>] b"    the whole token is literal text
            "a <"        "a <]"         a template that prints "s>" after it prints <]s>, in which no token is found
            "s> a"       "[s> a"        the same after a "<"
            "s"          "s]"           the same between "<" and ">"
        """
        if isinstance(value, str):
            return self._marked_text(value, template_words)
        if isinstance(value, Mapping):
            return {self.marked(key, template_words): self.marked(item, template_words) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.marked(item, template_words) for item in value]
        return value

    def _marked_text(self, text: str, template_words: frozenset[str]) -> str:
        inner = text.strip()  # A template may strip a text and print it beside another one.
        marked = self._pattern.sub(lambda match: _START + match[0] + _END, inner)
        if inner in self._inner_parts and inner not in template_words:
            marked += _END
        else:
            sizes = range(1, min(self._longest, len(inner) + 1))
            # Only few texts have a last character of a token near the beginning, or a first one near the end.
            if not self._lasts.isdisjoint(inner[: self._longest]) and any(inner[:n] in self._ends for n in sizes):
                marked = _START + marked
            if not self._firsts.isdisjoint(inner[-self._longest :]) and any(
                inner[-n:] in self._beginnings for n in sizes
            ):
                marked += _END
        if marked == inner:
            return text
        n_before = len(text) - len(text.lstrip())
        return text[:n_before] + marked + text[n_before + len(inner) :]

    def parts(self, prompt: str) -> list[TextPart]:
        """The texts of a rendered prompt to tokenize, without markers, each with whether its control tokens are parsed.

        Without control tokens in texts of the request this is one text, since each border between two texts can change
        the tokens beside it. Otherwise the prompt is split at the control tokens of the template, at which the
        tokenizer splits it too, and the texts between them are not parsed. A user wrote "</s>", [ and ] are markers:

            <s>user: say [</s>]</s>    becomes    ("<s>", True), ("user: say </s>", False), ("</s>", True)
        """
        pieces = _MARKER.split(prompt)  # A text, a marker, a text and so on.
        if len(pieces) == 1:
            return [(prompt, True)]
        texts, markers = pieces[::2], ["", *pieces[1::2], ""]
        whole = "".join(texts)
        parts: list[TextPart] = []
        n_before = end = 0
        for text, before, after in zip(texts, markers, markers[1:]):
            is_literal = before == _START and after == _END and self._pattern.fullmatch(text)
            for match in () if is_literal else self._pattern.finditer(text):
                start = n_before + match.start()
                parts += [self._text_part(whole[end:start]), (match[0], True)]
                end = start + len(match[0])
            n_before += len(text)
        parts.append(self._text_part(whole[end:]))
        groups = itertools.groupby(parts, key=lambda part: part[1])
        return [("".join(text for text, _ in group), is_parsed) for is_parsed, group in groups]

    def _text_part(self, text: str) -> TextPart:
        """A text without control tokens of the template. It is parsed with them if it has no other control tokens."""
        return text, self._pattern.search(text) is None


def without_markers(prompt: str) -> str:
    """The text of a prompt that the model reads."""
    return _MARKER.sub("", prompt)


def with_hidden(tag: str, text: str) -> str:
    """A text in which a template does not find a tag: each has a marker inside it, and is a tag again in the prompt."""
    return text.replace(tag, tag[:1] + _END + tag[1:]) if tag else text
