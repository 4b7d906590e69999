"""The response to any request (`Client.request`), as the server sent it. No I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ProtocolError

_CHARSET = re.compile(r';\s*charset="?([^\s;"]+)', re.IGNORECASE)


@dataclass(frozen=True)
class Response:
    """The status, the headers and the body of a response. `str(response)` is its text."""

    status: int
    headers: Mapping[str, str] = field(repr=False)  # Names are in lower case.
    content: bytes  # The body, after decompression.

    @property
    def text(self) -> str:
        """The body as text, in the character set that the server names, else UTF-8. Wrong bytes become U+FFFD."""
        charset = _CHARSET.search(self.headers.get("content-type", ""))
        try:
            return self.content.decode(charset[1] if charset else "utf-8", "replace")
        except (LookupError, ValueError):  # Python does not know the character set, or it is none of texts.
            return self.content.decode("utf-8", "replace")

    def json(self) -> Any:
        """The body parsed as JSON. Raises ProtocolError if it is no JSON."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError) as error:
            content_type = self.headers.get("content-type", "no Content-Type")
            message = f"the response is not JSON ({error}): {content_type}, {len(self.content)} bytes"
            raise ProtocolError(message) from None

    def __str__(self) -> str:
        return self.text
