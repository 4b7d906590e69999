"""The settings of a client: the server with its key, the headers, the limits; and what was learned of the server."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import LocalChatError
from .addresses import Address, is_loopback, make_tls_context, parse_base_url, parse_proxy
from .http1 import check_header
from .secrets import Secrets, secrets_of_headers, secrets_of_url
from .timeouts import DEFAULT_TIMEOUT, Timeout

if TYPE_CHECKING:  # The import takes as long as that of the whole client; the first https request imports it.
    import ssl

DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"
# Larger than any response, and small enough for the memory.
DEFAULT_MAX_BYTES = 256 * 1024 * 1024
DEFAULT_MAX_RETRIES = 2

# The arguments with another default than None.
_DEFAULTS: dict[str, Any] = {
    "timeout": DEFAULT_TIMEOUT,
    "max_retries": DEFAULT_MAX_RETRIES,
    "headers": {},
    "verify": True,
    "max_bytes": DEFAULT_MAX_BYTES,
}


class LearnedTraits:
    """What clients have learned of a server. Those that `with_options` made of one another share it."""

    def __init__(self) -> None:
        self.model: str | None = None  # Its only model, as far as it is known.
        self.may_list_models = True  # False if it has no list of models.
        self.refused_fields: set[str] = set()  # The fields that are no longer sent, by their keys in completion.py.
        # The accepted modes of response formats, by the texts of the schemas (response_format.ExpectedValue).
        self.accepted_formats: dict[str, str] = {}


class Settings:
    """The arguments of a client (ClientOptions), already checked by type, and the environment at that time."""

    def __init__(self, environment: Mapping[str, str] | None = None, **arguments: Any) -> None:
        names = "OPENAI_BASE_URL", "OPENAI_API_KEY", "LOCALCHAT_MODEL"
        self.environment = environment or {name: os.environ.get(name, "") for name in names}
        self.base_url: str = arguments.get("base_url") or self.environment["OPENAI_BASE_URL"] or DEFAULT_BASE_URL
        self.address: Address = parse_base_url(self.base_url)
        key = arguments.get("api_key")
        if key is None:  # OPENAI_API_KEY, but not in plain text to another machine than that of OPENAI_BASE_URL.
            is_local = self.address.socket_path is not None or is_loopback(self.address.host)
            is_trusted = self.address.scheme == "https" or self.base_url == self.environment["OPENAI_BASE_URL"]
            key = self.environment["OPENAI_API_KEY"] if is_local or is_trusted else ""
        self.key: str = key.strip()  # Keys from files end with a line end. The error does not show the key.
        if not self.key.isascii() or not self.key.isprintable():
            raise ValueError("the key has characters that cannot be sent: is the API key right?")
        self.model: str | None = arguments.get("model") or self.environment["LOCALCHAT_MODEL"] or None
        arguments = {**_DEFAULTS, **{name: value for name, value in arguments.items() if value is not None}}
        self.timeout = Timeout.of(arguments["timeout"])
        self.max_retries: int = arguments["max_retries"]
        self.on_retry: Callable[[int, float, LocalChatError], object] | None = arguments.get("on_retry")
        self.headers: dict[str, str] = dict(arguments["headers"])
        self.proxy: str | bool | None = arguments.get("proxy")
        if isinstance(self.proxy, str):
            parse_proxy(self.proxy)
        self.verify: Any = arguments["verify"]
        # Made by the first https request, or now if `verify` is no bool, since it may be wrong.
        self._tls_context = None if isinstance(self.verify, bool) else make_tls_context(self.verify)
        self.max_bytes: int = arguments["max_bytes"]
        # Whether results of tools have the name of the tool, which chat templates of local servers may need.
        self.names_tools = self.address.scheme != "https" or is_loopback(self.address.host)
        self.learned = LearnedTraits()  # Changes with the responses; other clients may share it.
        check_headers(self.headers)

    @property
    def shown_url(self) -> str:
        """The base URL without the query, which is a key for some servers."""
        return self.base_url.partition("?")[0]

    def adopt_from(self, other: Settings) -> None:
        """Share what another client has learned of the same server, and its TLS context."""
        if other.base_url == self.base_url:
            self.learned = other.learned
        if other.verify == self.verify:
            self._tls_context = self._tls_context or other._tls_context

    def tls_context(self) -> ssl.SSLContext:
        """The TLS context. Making it reads the files of certificates, which takes 20 ms."""
        self._tls_context = self._tls_context or make_tls_context(self.verify)
        return self._tls_context

    def request_headers(self, extra: Mapping[str, str], has_body: bool = True) -> dict[str, str]:
        """The headers of a request. A later one replaces an earlier one of the same name in any case."""
        headers = {
            "Host": self.address.host_header,
            **({"Content-Type": "application/json"} if has_body else {}),
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Cache-Control": "no-store",
            "User-Agent": "localchat",
        }
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        pairs = [*headers.items(), *self.headers.items(), *extra.items()]
        return dict({name.lower(): (name, value) for name, value in pairs}.values())

    def secrets(self, extra: Mapping[str, str]) -> Secrets:
        """The secrets of a call with `extra` headers."""
        in_url = () if self.address.socket_path else secrets_of_url(self.base_url)
        return Secrets([self.key, *in_url, *secrets_of_headers(self.headers), *secrets_of_headers(extra)])


def check_headers(headers: Mapping[str, str]) -> None:
    """Raise ValueError for a header that HTTP does not allow, or that only the client itself may send."""
    for name, value in headers.items():
        check_header(name, value)
