"""The chat page: one HTML file, and the Content-Security-Policy that allows its own scripts and styles only."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .exchange import Exchange

_FILE = Path(__file__).with_name("page.html")
_INLINE = re.compile(r"<(script|style)\b[^>]*>(.*?)</\1>", re.DOTALL)


def wants_page(request: Exchange) -> bool:
    """Whether this is the request of a browser for the page. curl and programs accept no HTML."""
    return request.path == "/" and "text/html" in (request.headers.get("Accept") or "")


@functools.lru_cache(maxsize=1)
def chat_page() -> tuple[str, dict[str, str]]:
    """The page, and the headers of its response. The browser runs no script whose hash is not among them."""
    text = _FILE.read_text(encoding="utf-8")
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in _INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        hashes[kind].append(f"'sha256-{digest}'")
    policy = (
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"frame-ancestors 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}"
    )
    headers = {
        "Content-Security-Policy": policy,
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    return text, headers
