"""How a client is set up: server, key, time limits, headers, and the secret that no message may show."""

from __future__ import annotations

import importlib
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from .errors import LocalChatError, ProtocolError
from .http1 import check_header
from .keywords import AllClientKeywords, ClientKeywords, check_keywords
from .network import is_loopback, parse_base_url
from .timeouts import Timeout

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

DEFAULT_BASE_URL = "http://127.0.0.1:8080/v1"
# Far more than an answer has, and less than fills the memory.
DEFAULT_MAX_BYTES = 256 * 1024 * 1024

_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')


class Settings:
    """How a client is set up. The arguments are described at Client."""

    def __init__(self, **given: Unpack[AllClientKeywords]) -> None:
        self.base_url = given.get("base_url") or os.environ.get("OPENAI_BASE_URL") or DEFAULT_BASE_URL
        self.address = parse_base_url(self.base_url)
        api_key = given.get("api_key")
        self.key = _clean_key(self._environment_key() if api_key is None else api_key)
        self.model = given.get("model") or os.environ.get("LOCALCHAT_MODEL") or None
        self.timeout = Timeout.of(given.get("timeout"))
        self.max_retries = given.get("max_retries", 2)
        self.on_retry = given.get("on_retry")
        self.headers = dict(given.get("headers") or {})
        self.proxy = given.get("proxy")
        self.verify = given.get("verify", True)
        self.follow_redirects = given.get("follow_redirects", False)
        self.log_bodies = given.get("log_bodies", False)
        self.max_bytes = given.get("max_bytes", DEFAULT_MAX_BYTES)
        record = given.get("record")
        self.transport: Any = given.get("transport")
        if record is not None:
            self.transport = companion("record").Recorder(record, self.key, self.transport)
        # Learned from the server: its models, and whether it takes stream_options.
        self.found_model: str | None = None
        self.found_embedding_model: str | None = None
        self.takes_stream_options = True

    def _environment_key(self) -> str:
        """OPENAI_API_KEY, for the server that OPENAI_BASE_URL names, for this machine, and over https.

        Any other server would get the key of another one, and in plain text.
        """
        address = self.address
        is_near = address.socket_path is not None or is_loopback(address.host)
        trusted = is_near or address.scheme == "https" or self.base_url == os.environ.get("OPENAI_BASE_URL")
        return os.environ.get("OPENAI_API_KEY", "") if trusted else ""

    def same_peer(self, other: Settings) -> bool:
        """Whether connections made for one of the two can be used for the other."""
        return all(getattr(self, name) == getattr(other, name) for name in ("address", "proxy", "verify", "transport"))

    def request_headers(self, extra: Mapping[str, str]) -> dict[str, str]:
        """The headers of a request, `extra` ones included.

        Raises:
            ValueError: One cannot be sent.
        """
        headers = {
            "Host": self.address.host_header,
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Cache-Control": "no-store",
            "User-Agent": "localchat",
        }
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        # By name whatever its case: two headers of one name would leave it to the server which one holds.
        given = [*headers.items(), *self.headers.items(), *extra.items()]
        spelled = {name.lower(): (name, value) for name, value in given}
        for name, value in spelled.values():
            check_header(name, value)
        return dict(spelled.values())

    # The key must not get into messages: some servers repeat it in theirs.

    def mask_error(self, error: LocalChatError) -> None:
        """Take the key out of an error."""
        error.args = tuple(self.mask(item) if isinstance(item, str) else item for item in error.args)
        if isinstance(error, ProtocolError):
            error.head = self.mask(error.head)

    def mask_payload(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The same for a payload that reports an error; an answer is left as it is."""
        choices = payload.get("choices")
        places = (payload, payload.get("x_groq"), *(choices if isinstance(choices, list) else ()))
        has_error = any(isinstance(place, dict) and place.get("error") for place in places)
        if not (has_error or "detail" in payload or payload.get("object") == "error"):
            return payload
        # Within the texts alone: a key of digits may stand in a number by chance.
        masked = _JSON_TEXT.sub(lambda text: json.dumps(self.mask(json.loads(text[0]))), json.dumps(payload))
        return dict(json.loads(masked))

    def mask(self, text: str) -> str:
        """Text without the key. JSON may write a character, such as /, behind a backslash or by its number."""
        key = "".join(rf"(?:\\?{re.escape(char)}|\\u(?i:{ord(char):04x}))" for char in self.key)
        return re.sub(key, "***", text) if len(self.key) > 3 else text


class BaseClient:
    """How clients of both kinds are made. The arguments are described at Client."""

    # What holds the connections, a Pool or an AsyncPool, and the class of it.
    _pool: Any
    _new_pool: Callable[[], Any]

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        model: str | None = None,
        **options: Unpack[ClientKeywords],
    ) -> None:
        check_keywords(options, ClientKeywords, type(self).__name__)
        self._set_up({"base_url": base_url, "api_key": api_key, "model": model, **options})

    def with_options(self, **options: Unpack[AllClientKeywords]) -> Self:
        """A client with other values for some arguments of `Client`; it shares the connections where it can."""
        check_keywords(options, AllClientKeywords, "with_options")
        known, changed = self._settings, type(self).__new__(type(self))
        # A recording goes on in the same file.
        transport: AllClientKeywords = {"record": None, "transport": None if "record" in options else known.transport}
        changed._set_up({**self._given, **transport, **options})
        settings = changed._settings
        if settings.base_url == known.base_url:
            settings.found_model, settings.takes_stream_options = known.found_model, known.takes_stream_options
        if settings.same_peer(known):
            changed._pool = self._pool
        return changed

    def _set_up(self, given: AllClientKeywords) -> None:
        self._given, self._settings, self._pool = given, Settings(**given), self._new_pool()

    @property
    def base_url(self) -> str:
        """The server's URL, as it was given."""
        return self._settings.base_url

    def __repr__(self) -> str:
        """Without the query of the base URL, in which some servers take a key."""
        return f"{type(self).__name__}({self._settings.base_url.partition('?')[0]!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} cannot be pickled or copied: it holds a key and connections")


def companion(name: str) -> Any:
    """A module of the package that the files of the client can do without."""
    try:
        return importlib.import_module(f".{name}", __package__)
    except (ImportError, TypeError) as error:  # TypeError: as a single file it has no package at all.
        raise ImportError(f"this needs localchat's {name}.py, which is not beside the client") from error


def _clean_key(key: str) -> str:
    """Keys from files end with a line end. One that cannot be sent is not shown."""
    key = key.strip()
    if not key.isascii() or not key.isprintable():
        raise ValueError("the key has characters that cannot be sent: is the API key right?")
    return key
