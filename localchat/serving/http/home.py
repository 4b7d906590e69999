"""The home page for browsers at `/`, its error page, the list of endpoints at `/v1`, and an empty favicon.

If Accept does not contain `text/html`, as with curl, the page is plain text and an error is JSON.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from http import HTTPStatus

from ..chat.service import Service
from ..core import errors
from .endpoints import Table
from .exchange import Exchange

_HOST = re.compile(r"[A-Za-z0-9.\-\[\]:]+")
_DAY = {"Cache-Control": "max-age=86400"}
_DOCS = (
    "README.md (start)",
    "docs/server.md (options)",
    "docs/client.md",
    "docs/tools.md",
    "docs/clients.md (editors and agents)",
)
_LINKS = ("/v1/models", "/v1", "/health", "/props", "/metrics")
_PAGE = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>localchat</title><link rel="icon" href="data:,">{refresh}
<meta name="viewport" content="width=device-width">
<style>body {{ font: 16px/1.5 sans-serif; max-width: 44em; margin: 3em auto; padding: 0 1em }}
pre {{ background: #8882; padding: .7em; overflow-x: auto }} :root {{ color-scheme: light dark }}</style></head>
<body><h1>localchat</h1>
{content}
<p>The documentation comes with localchat: {docs}.</p>
</body></html>
"""
_READY = """<p>{state}</p>
<p>Base URL for clients: <code>{url}</code></p>
<pre>{command}</pre>
<p>{links}</p>"""


class Home:
    """The endpoints for browsers. `served` returns the method and path of each endpoint."""

    def __init__(self, service: Service, *, scheme: str, served: Callable[[], Iterable[str]]) -> None:
        self._service = service
        self._scheme = scheme
        self._served = served

    def table(self) -> Table:
        return {"/": {"GET": self._page}, "/v1": {"GET": self._endpoints}, "/favicon.ico": {"GET": self._no_icon}}

    def _page(self, exchange: Exchange) -> None:
        url = self._base_url(exchange)
        state, is_loading = self._state()
        command = f"""curl -s {url}/chat/completions -d '{{"messages": [{{"role": "user", "content": "Hello!"}}]}}'"""
        if not accepts_html(exchange):
            text = f"localchat: {state}\n\n{command}\n\n{'  '.join(_LINKS)}\nDocumentation: {', '.join(_DOCS)}\n"
            exchange.send_text("text/plain; charset=utf-8", text, {"Cache-Control": "no-store"})
            return
        content = _READY.format(
            state=html.escape(state),
            url=html.escape(url),
            command=html.escape(command),
            links=" · ".join(f'<a href="{path}">{path}</a>' for path in _LINKS),
        )
        exchange.send_page(200, _page(content, is_loading=is_loading))

    def _endpoints(self, exchange: Exchange) -> None:
        exchange.send_json(200, {"base_url": self._base_url(exchange), "endpoints": list(self._served())})

    def _no_icon(self, exchange: Exchange) -> None:
        exchange.send_nothing(_DAY)

    def _state(self) -> tuple[str, bool]:
        """The state of the server as text, and whether the model is loading."""
        try:
            model = self._service.model()
        except errors.ModelLoading as error:
            return error.message, True
        except errors.ApiError as error:
            return error.message, False
        facts = model.engine.facts
        return f"the model {model.name} is ready ({facts.description}, context of {facts.n_ctx} tokens).", False

    def _base_url(self, exchange: Exchange) -> str:
        """The base URL, with the host name of the request if it is valid, else with the address of the connection."""
        host = exchange.head.host or ""
        return f"{self._scheme}://{host if _HOST.fullmatch(host) else _address(exchange)}/v1"


def _address(exchange: Exchange) -> str:
    """The `host:port` that the client connected to."""
    address = exchange.head.socket.getsockname()
    if isinstance(address, str):  # A Unix socket, for which a client may use any host name.
        return "localhost"
    host, port = address[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def accepts_html(exchange: Exchange) -> bool:
    """Whether the request accepts HTML, as a browser does for pages."""
    return "text/html" in (exchange.head.headers.get("Accept") or "")


def error_page(error: errors.ApiError) -> str:
    return _page(f"<p>{HTTPStatus(error.status).phrase}: {html.escape(error.message)}.</p>")


def _page(content: str, *, is_loading: bool = False) -> str:
    refresh = '<meta http-equiv="refresh" content="2">' if is_loading else ""
    return _PAGE.format(refresh=refresh, content=content, docs=html.escape(", ".join(_DOCS)))
