"""The secrets of a client, and texts in which they are masked: errors, warnings and lines of the log. No I/O.

A secret is the key, what the URLs of the server and of the proxy have in their query and before their host, and the
values of added headers. Servers repeat them, also escaped or encoded, and cut at any place.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

from ..texts import excerpt

MASK = "***"

# Added headers that hold no secret, as patterns of their names in lower case.
_OPEN_HEADERS = re.compile(
    "accept(-.*)?|user-agent|content-.*|cache-control|referer|http-referer|origin|host|date|x-title|.*-version|"
    ".*-beta|.*-organization|.*-project"
)
# The names of added headers, and of variables, in which also a word is a secret, in lower case.
CREDENTIAL_NAMES = re.compile("auth|cookie|key|token|secret|passw|credential|session|signature")
# The names of authentication schemes, which stand before the secret of a header.
_SCHEME = re.compile(r"(?i:bearer|basic|token|digest|key|apikey|negotiate)")

# A text that occurs in messages by chance: a short word, such as the key "local" of many local servers, the name of a
# server, which is a usual key for it, a small number, or three characters. It is masked only where it is a value.
_ORDINARY = re.compile(
    r"[A-Za-z]{1,5}|[0-9]{1,5}|.{1,3}|(?i:ollama|lm-?studio|localchat|llama\.?cpp|vllm|sglang|none-?needed|not-?needed)",
    re.DOTALL,
)
_BEFORE_VALUE = r"(=|\b(?i:bearer|basic|token|key|password|secret|provided|authorization)\W{1,4})"

# A cut secret has at least this many characters; a shorter one is hardly of use.
_LEAST_CUT_CHARS = 6
_MAX_CUT_CHARS = 40

_ENTITIES = {"&": "amp", "<": "lt", ">": "gt", '"': "quot", "'": "apos"}


def secrets_of_url(url: str) -> Iterator[str]:
    """The user, the password and the values of the query of a URL. The value of a version is no secret."""
    parts = urlsplit(url if "://" in url else "http://" + url)
    userinfo = parts.netloc.rpartition("@")[0]
    yield from map(unquote, (userinfo, *userinfo.split(":", 1)))
    for parameter in parts.query.split("&"):
        name, separator, value = parameter.partition("=")
        if "version" not in name.lower():
            yield unquote_plus(value if separator else name)


def secrets_of_headers(headers: Mapping[str, str]) -> Iterator[str]:
    """The values of headers that may be secrets: each as a whole and its parts, such as those of cookies."""
    for name, value in headers.items():
        if _OPEN_HEADERS.fullmatch(name.lower()):
            continue
        parts = [part for part in re.split(r"[\s;,]+", value) if not _SCHEME.fullmatch(part)]
        texts = [value, *parts, *(part.partition("=")[2] for part in parts)]
        has_credentials = CREDENTIAL_NAMES.search(name.lower()) is not None
        yield from (text for text in texts if has_credentials or not text.isalpha())
        scheme, _, credentials = value.partition(" ")
        if scheme.lower() == "basic":
            yield from _basic_credentials(credentials)


def _basic_credentials(encoded: str) -> Iterator[str]:
    import binascii  # Few programs have such a header.

    try:
        userinfo = binascii.a2b_base64(encoded).decode()
    except ValueError:
        return
    yield userinfo
    yield userinfo.partition(":")[2]


class Secrets:
    """Masks secrets in texts that are shown. Replies are never masked: a short key may be a word of their text."""

    def __init__(self, texts: Iterable[str]) -> None:
        # The longest first, so that none leaves the end of a longer one.
        self._texts = sorted({text.strip() for text in texts} - {""}, key=len, reverse=True)

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Matches a secret in any form. The first group is what stands before the value of an ordinary word."""
        ordinary = [text for text in self._texts if _ORDINARY.fullmatch(text)]
        special = [text for text in self._texts if not _ORDINARY.fullmatch(text)]
        patterns = list(map(_any_form, special))
        if ordinary:
            patterns.append(_BEFORE_VALUE + rf"(?:{'|'.join(map(_any_form, ordinary))})(?!\w)")
        # A cut secret is at the end of a text, or before the dots with which `cut` ends it.
        patterns += [rf"{_cut_form(text)}(?=\W{{0,3}}(?:\.\.\.\W{{0,3}})?\Z)" for text in special]
        return re.compile("|".join(patterns))

    def mask(self, text: str) -> str:
        """The text with asterisks in place of each secret, however it is escaped, encoded or cut at the end."""
        if not self._texts:
            return text
        return self._pattern.sub(lambda match: (match[1] if match.lastindex else "") + MASK, text)

    def mask_json(self, value: Any) -> Any:
        """A JSON value with its texts masked. Numbers stay: they contain a key of digits by chance only."""
        if isinstance(value, str):
            return self.mask(value)
        if isinstance(value, Mapping):
            return {self.mask_json(name): self.mask_json(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            masked = map(self.mask_json, value)
            return list(masked) if isinstance(value, list) else tuple(masked)
        return value

    def mask_error(self, error: BaseException | None) -> None:
        """Mask the message and the attributes of an error and of its causes. The partial reply stays as it is."""
        while error is not None:
            error.args = self.mask_json(error.args)
            for name, value in vars(error).items():
                if name not in ("partial", "text"):
                    try:
                        masked = self.mask_json(value)
                    except RecursionError:  # Python 3.12 and later parse JSON of any depth, such as that of a server.
                        masked = "JSON that is nested too deeply"
                    setattr(error, name, masked)
            error = error.__cause__

    def shown(self, text: str) -> str:
        """The beginning of a text on one line, masked."""
        return excerpt(self.mask(text[: 16 * 1024]))


def _any_form(secret: str) -> str:
    """A pattern of a secret in which each character may be escaped as in JSON, URLs or HTML.

    Upper and lower case are the same, as in the names of codings. A secret of letters alone may be a word: they differ.
    """
    pattern = "".join(map(_any_form_of_char, secret))
    return pattern if secret.isalpha() else f"(?i:{pattern})"


def _any_form_of_char(char: str) -> str:
    code, in_url = ord(char), "".join(rf"%(?:25){{0,3}}(?i:{byte:02x})" for byte in char.encode(errors="replace"))
    forms = [rf"\\{{0,4}}{re.escape(char)}", rf"\\{{1,4}}u(?i:{code:04x})", in_url]
    forms += [rf"&#0{{0,5}}{code};", rf"&#(?i:x0{{0,5}}{code:x});"]
    if char in _ENTITIES:
        forms.append(f"&{_ENTITIES[char]};")
    if char == " ":
        forms.append(r"\+")
    return f"(?:{'|'.join(forms)})"


def _cut_form(secret: str) -> str:
    """A pattern of the beginning of a secret, of any length: of `abcd` from `ab` on, it would be `ab(?:c(?:d)?)?`."""
    chars = [f"(?i:{_any_form_of_char(char)})" for char in secret[:_MAX_CUT_CHARS]]
    start, others = chars[:_LEAST_CUT_CHARS], chars[_LEAST_CUT_CHARS:]
    rest = r"\S*" if len(secret) > _MAX_CUT_CHARS else ""
    return "".join(start) + "".join(f"(?:{char}" for char in others) + rest + ")?" * len(others)
