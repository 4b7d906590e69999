"""POST /tokenize and /detokenize: parses the requests, and encodes the responses, in llama.cpp's format.

/apply-template has the request of chat completions (chat.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.fields import first_given, parse_body, unknown_fields
from ..core.inputs import is_token
from ..core.request import DEFAULT_OPTIONS, ParseOptions


@dataclass(frozen=True)
class TokenizeRequest:
    """A text to tokenize."""

    model: str
    text: str
    adds_special: bool
    """Add the model's BOS."""
    parses_special: bool
    """Parse the texts of control tokens as control tokens."""
    with_pieces: bool
    """Return the text of each token, too."""
    unknown: tuple[str, ...] = ()
    """The names of unknown fields, which were ignored."""


@dataclass(frozen=True)
class DetokenizeRequest:
    """Tokens to convert to text."""

    model: str
    tokens: tuple[int, ...]
    unknown: tuple[str, ...] = ()


def parse_tokenize(raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> TokenizeRequest:
    """The request in a body. `prompt` and `text` are other servers' names for `content`.

    Raises:
        BadRequest: A field is invalid.
    """
    body = parse_body(raw)
    text = first_given([body.text(name) for name in ("content", "prompt", "text")])
    if text is None:
        body.refuse("content", "a string")
    return TokenizeRequest(
        model=body.text("model") or "",
        text=text,
        adds_special=first_given([body.boolean("add_special"), body.boolean("add_special_tokens")]) or False,
        parses_special=body.boolean("parse_special") is not False,
        with_pieces=body.boolean("with_pieces") or False,
        unknown=unknown_fields(body, (), options.strict),
    )


def tokens_body(tokens: Sequence[int], request: TokenizeRequest, piece: Callable[[int], bytes]) -> dict[str, Any]:
    if request.with_pieces:
        return {"tokens": [{"id": token, "piece": _text_or_bytes(piece(token))} for token in tokens]}
    return {"tokens": list(tokens)}


def parse_detokenize(raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> DetokenizeRequest:
    """The request in a body.

    Raises:
        BadRequest: A field is invalid.
    """
    body = parse_body(raw)
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(map(is_token, tokens)):
        body.refuse("tokens", "a list of token ids")
    return DetokenizeRequest(body.text("model") or "", tuple(tokens), unknown_fields(body, (), options.strict))


def text_body(pieces: Sequence[bytes]) -> dict[str, Any]:
    """The text of the pieces. Bytes that are not valid UTF-8 become U+FFFD."""
    return {"content": b"".join(pieces).decode("utf-8", "replace")}


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
