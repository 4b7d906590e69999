"""The API keys of the server: checks whether a request has one of them."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Iterator
from email.message import Message
from hashlib import sha256


class Keys:
    """The accepted keys. If there are none, every request is accepted."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accept(self, headers: Message) -> bool:
        """Whether `Authorization: Bearer KEY` or `X-Api-Key: KEY` has one of the keys.

        Each given key is compared with all keys, by digest, so that the time reveals nothing about a key.
        """
        is_known = not self._digests
        for given in _given(headers):
            digest = sha256(given.strip().encode("latin-1", "replace")).digest()
            for own in self._digests:
                is_known |= hmac.compare_digest(digest, own)
        return is_known


def _given(headers: Message) -> Iterator[str]:
    scheme, _, key = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield key
    yield headers.get("X-Api-Key", "")
