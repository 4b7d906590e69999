"""`python -m localchat.server [MODEL.gguf]`: an OpenAI-compatible chat server on http.server.

Connections and the command line: http.server parses requests, one thread per connection, HTTP/1.1 with
keep-alive; exchange.py carries each one out, and routes.py says what answers it. It listens from the
start, loads the model meanwhile, and on Ctrl-C ends running answers with an error and their end.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import http.server
import importlib.util
import logging
import os
import re
import signal
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from email import errors as defects
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .engine import LoadOptions, load
from .engine.proof import LIBRARY
from .models.catalog import DEMO_PATH, Catalog, ModelFile, ModelFileError, model_file
from .models.gguf import GGUFError, read_header
from .protocol import errors
from .protocol.params import parse_default
from .serving.exchange import Exchange, Head, linger
from .serving.incoming import Incoming
from .serving.routes import DEFAULT_MAX_CONNECTIONS, Routes, Settings
from .serving.watch import Watcher
from .serving.web import is_loopback

if TYPE_CHECKING:  # It brings jinja2, and `main` first looks whether that is there.
    from .generation.model import Model, Service

log = logging.getLogger("localchat.server")

# How long a connection may be idle between requests: longer than the pools of common clients keep one.
IDLE_TIMEOUT_S = 120.0
# How long a peer may take to send the head of a request, once it has begun.
HEAD_TIMEOUT_S = 30.0
# How long a peer may take to send or to accept the next bytes: a stuck reader holds one sequence.
IO_TIMEOUT_S = 30.0
# How long to wait for a connection to end when there are as many as there can be.
NO_FILES_PAUSE_S = 0.5
# After so long, in seconds, a thread of Python's gives way to one that waits. Its own default, 5 ms, is more than a
# turn of the engine takes, which would be spent waiting for a request to be parsed.
SWITCH_INTERVAL_S = 0.001
# How much of the disk kept prompts may take where nothing is said.
_DEFAULT_CACHE_MB = 4096
# How long threads get to send their last words when the server ends.
CLOSE_TIMEOUT_S = 5.0

# What Python's parser misses of a body in parts, of which it gets the head alone; the headers are none the worse.
_OF_THE_BODY = (
    defects.NoBoundaryInMultipartDefect,
    defects.StartBoundaryNotFoundDefect,
    defects.MultipartInvariantViolationDefect,
    defects.InvalidMultipartContentTransferEncodingDefect,
)


class Handler(http.server.BaseHTTPRequestHandler):
    """Lets http.server parse requests; each becomes an Exchange. Holds nothing of any request itself."""

    server: ChatServer
    rfile: Incoming
    raw_requestline: bytes
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(IO_TIMEOUT_S)
        self.rfile.close()
        self.rfile = Incoming(self.connection)

    def handle_one_request(self) -> None:
        self.rfile.begin_head(IDLE_TIMEOUT_S)
        super().handle_one_request()

    def parse_request(self) -> bool:
        self.rfile.limit(HEAD_TIMEOUT_S)
        if self.raw_requestline in (b"\r\n", b"\n"):  # RFC 9112, 2.2: skip one that came too many
            self.raw_requestline = self.rfile.readline(65537)
        if not super().parse_request():
            return False
        self.rfile.limit(None)
        if self.rfile.is_ambiguous:
            self.send_error(400, "the headers are broken: a carriage return or a NUL in a line, or a line that goes on")
            return False
        if not all(isinstance(defect, _OF_THE_BODY) for defect in self.headers.defects):
            self.send_error(400, "the headers are broken: each line must be a name, a colon and a value")
            return False
        return True

    def handle_expect_100(self) -> bool:
        return True  # whoever reads the body says so

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server found wrong with a request. The rest of the connection cannot be trusted."""
        self.rfile.limit(None)
        self._refuse(errors.MalformedRequest(message or HTTPStatus(code).phrase, int(code)), self.command or "")

    def log_message(self, format: str, *args: object) -> None:
        log.debug(format, *args)

    def _route(self) -> None:
        head = Head(
            method=self.command,
            target=self.path,
            version=self.request_version,
            headers=self.headers,
            keep_alive=not self.close_connection,
            stream=self.rfile,
            socket=self.connection,
        )
        self._answer(head, self.server.routes.answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _route  # noqa: N815

    def _refuse(self, error: errors.ApiError, method: str = "") -> None:
        """Answers what is not known to be a request, and ends the connection."""
        self._answer(Head(method, "", "HTTP/1.1", Message(), False, self.rfile, self.connection), _raiser(error))

    def _answer(self, head: Head, route: Callable[[Exchange], None]) -> None:
        began_at = time.monotonic()
        routes = self.server.routes
        settings, page_headers = self.server.settings, routes.pages.headers(head.headers)
        exchange = Exchange(head, self.server.watcher, settings.max_body_bytes, page_headers)
        exchange.run(route)
        exchange.log()
        routes.count(exchange, time.monotonic() - began_at)
        self.close_connection = not exchange.keep_alive
        if self.close_connection:
            linger(self.connection)


class CrowdedHandler(Handler):
    """Whatever was going to be asked, it is one connection too many."""

    def handle(self) -> None:
        limit = self.server.settings.max_connections
        self._refuse(errors.TooManyConnections(f"{limit} connections are open and {limit} are the limit: try again"))


class ChatServer(http.server.ThreadingHTTPServer):
    """Listens from its making on; answers 503 until the service has its model.

    Connections beyond the limit are told so, and those beyond twice the limit are closed without a word.
    """

    daemon_threads = True
    request_queue_size = 512
    # On Windows this would let two servers have one port; so would SO_REUSEPORT elsewhere.
    allow_reuse_address = os.name != "nt"
    allow_reuse_port = False

    def __init__(self, service: Service, settings: Settings) -> None:
        self.address_family, _, _, _, address = _addresses(settings.host, settings.port)[0]
        self.service = service
        self.settings = settings
        self.routes = Routes(service, settings)
        # Connections with a thread, and those of them that are told to come again; notified as they end.
        self._open: set[socket.socket] = set()
        self._crowded: set[socket.socket] = set()
        self._changed = threading.Condition()
        self.watcher = Watcher()
        try:
            super().__init__(address[:2], Handler)
        except BaseException:
            self.watcher.close()
            raise

    def server_bind(self) -> None:
        # Without http.server's own, which asks the name service for our name and may wait long for it.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> Any:
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                # The connection stays in the queue, and the loop would ask for it again at once, for ever.
                log.warning("no file is left for another connection: raise the limit (ulimit -n)")
                time.sleep(NO_FILES_PAUSE_S)
            raise

    @property
    def url(self) -> str:
        # The addresses that mean "all" are none to connect to everywhere.
        host = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.settings.host, self.settings.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}"

    def close(self) -> None:
        """Ends all: answers at work get an error event and their end, idle connections are closed."""
        self.server_close()
        # First, since it would take what we close for clients that leave.
        self.watcher.close()
        self.service.stop()
        self._end_connections()
        # Last: even the end of an answer takes the model's vocabulary.
        self.service.close()

    def _end_connections(self) -> None:
        with self._changed:
            for how in (socket.SHUT_RD, socket.SHUT_RDWR):
                for connection in self._open:
                    with contextlib.suppress(OSError):
                        connection.shutdown(how)
                if self._changed.wait_for(lambda: not self._open, CLOSE_TIMEOUT_S):
                    return

    def process_request(self, request: Any, client_address: Any) -> None:
        limit = self.settings.max_connections
        with self._changed:
            has_room = len(self._open) < 2 * limit
            if has_room:
                if len(self._open) - len(self._crowded) >= limit:
                    self._crowded.add(request)
                self._open.add(request)
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def finish_request(self, request: Any, client_address: Any) -> None:
        handler = CrowdedHandler if request in self._crowded else Handler
        handler(request, client_address, self)

    def shutdown_request(self, request: Any) -> None:
        with self._changed:
            self._open.discard(request)
            self._crowded.discard(request)
            self._changed.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # A connection that broke is nothing to tell.
            log.exception("a connection failed")


def _raiser(error: Exception) -> Callable[[Exchange], None]:
    def route(exchange: Exchange) -> None:
        raise error

    return route


def _addresses(host: str, port: int) -> list[Any]:
    """Where to listen, IPv4 first: clients try 127.0.0.1 for localhost, some nothing else."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return sorted(found, key=lambda info: info[0] != socket.AF_INET)


# --- the command line ---


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m localchat.server",
        description="Serve a model in the GGUF format to OpenAI-compatible clients.",
        epilog="Ctrl-C ends it. While the model loads, requests get status 503 with Retry-After.",
    )
    whole = _between(0)
    positive = _between(1)
    port = _between(0, 65535)
    add = parser.add_argument
    add("model", nargs="?", metavar="MODEL.gguf", help="model file, or folder with one (default: the built-in one)")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all (default: %(default)s)")
    add("--port", type=port, default=8080, help="port to listen on; 0 for a free one (default: %(default)s)")
    add("--ctx", type=whole, default=0, metavar="N", help="tokens that one request may use (default: the model's own)")
    add("--parallel", type=positive, default=8, metavar="N", help="requests answered at once (default: %(default)s)")
    add("--queue", type=whole, default=256, metavar="N", help="requests that may wait then (default: %(default)s)")
    add(
        "--max-connections",
        type=positive,
        default=DEFAULT_MAX_CONNECTIONS,
        metavar="N",
        help="connections open at once, each with a thread (default: %(default)s)",
    )
    add("--gpu-layers", type=_between(-1), default=-1, metavar="N", help="layers on the GPU (default: all)")
    add("--threads", type=_between(0, 512), default=0, metavar="N", help="CPU threads (default: by the machine)")
    drafts = parser.add_mutually_exclusive_group()
    drafts.add_argument(
        "--draft",
        type=os.path.expanduser,
        metavar="SMALL.gguf",
        help="a smaller model of the same vocabulary that guesses ahead",
    )
    drafts.add_argument(
        "--no-speculation", action="store_true", help="never guess ahead, as else where a text repeats itself"
    )
    add("--cache-dir", type=_folder, metavar="DIR", help="keep what was read of prompts there, across restarts")
    add("--cache-size", type=positive, metavar="MB", help=f"most that it takes (default: {_DEFAULT_CACHE_MB})")
    add(
        "--cache-ram",
        type=whole,
        default=1024,
        metavar="MB",
        help="most memory for copies of what was read, beside the context's own (default: %(default)s)",
    )
    add("--max-tokens", type=positive, metavar="N", help="default length limit of an answer (default: the context)")
    add("--alias", metavar="NAME", help="name under which the model is served (default: the file's)")
    add(
        "--api-key",
        type=_key,
        default=os.environ.get("LOCALCHAT_API_KEY") or None,
        metavar="KEY",
        help="ask for this key; better set LOCALCHAT_API_KEY, which other users cannot see",
    )
    add(
        "--cors",
        type=_origin,
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this origin use the server, such as https://example.org, or * for all (may be repeated)",
    )
    add("--any-name", action="store_true", help="answer to every model name, not only to the model's own")
    add("--strict", action="store_true", help="refuse requests with unknown members")
    add(
        "--default",
        type=_sampling_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a sampling value for requests without one, as they would write it: temperature=0.7 (may be repeated)",
    )
    add("--keep-tools", action="store_true", help="show a model the tools also where 'tool_choice' is none")
    add("--allow-chat-template", action="store_true", help="let requests bring a chat template of their own")
    add("--thought-field", action="store_true", help="repeat thinking in a member 'thought' beside the choices")
    add(
        "--reasoning-budget",
        type=_between(-1),
        default=-1,
        metavar="N",
        help="tokens that an answer may think, 0 for none, where a request does not say it (default: any number)",
    )
    add(
        "--reasoning-budget-message",
        default="",
        metavar="TEXT",
        help="last words of thinking that is ended by its budget",
    )
    add("--version", action="version", version=f"localchat {__version__}")
    return parser


def _between(low: int, high: int = (1 << 31) - 1) -> Callable[[str], int]:
    """Reads a number; of one that is higher than these, C would take the lower bits without a word."""

    def integer(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            limit = f"at least {low}" if value < low else f"at most {high}"
            raise argparse.ArgumentTypeError(f"must be {limit}, got {value}")
        return value

    return integer


def _folder(text: str) -> Path:
    """Shells leave a ~ as it is behind the = of --cache-dir=~/folder."""
    if not text:
        raise argparse.ArgumentTypeError("the folder has no name: . is the one you are in")
    return Path(os.path.expanduser(text))


def _key(text: str) -> str:
    """Keys from files end with a line end."""
    key = text.strip()
    if not key or not key.isprintable():
        raise argparse.ArgumentTypeError("the key is empty, or has characters that no client can send")
    return key


def _origin(text: str) -> str:
    """Browsers name an origin with its scheme and without a path: nothing else would ever be found."""
    if re.fullmatch(r"\*|null|[a-z][a-z0-9+.-]*://[^/\sA-Z]+/?", text) is None:
        raise argparse.ArgumentTypeError(f"expected * or an origin, such as https://example.org, got {text!r}")
    return text


def _sampling_value(text: str) -> dict[str, Any]:
    try:
        return parse_default(text)
    except errors.BadRequest as error:
        raise argparse.ArgumentTypeError(error.message) from error


def main(arguments: list[str] | None = None) -> int:
    """Serves until Ctrl-C or SIGTERM, then returns 0; 1 when the server or the model cannot start."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.cache_size and not options.cache_dir:
        parser.error(f"--cache-size {options.cache_size} bounds a folder: name it with --cache-dir")
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    missing = [name for name in ("llama_cpp", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        return _complain(f"{missing[0]} is not installed: {sys.executable} -m pip install {LIBRARY}")
    _log_to_stderr()
    settings = Settings(
        host=options.host,
        port=options.port,
        api_key=options.api_key,
        strict=options.strict,
        allow_chat_template=options.allow_chat_template,
        thought_field=options.thought_field,
        cors=tuple(options.cors),
        max_connections=options.max_connections,
    )
    from .generation.model import Service

    if settings.api_key is None and not is_loopback(settings.host):
        log.warning("whoever reaches %s can use this server: --api-key asks for a key", settings.host)
    try:
        file = model_file(options.model, alias=options.alias)
    except (ModelFileError, OSError) as error:
        return _complain(str(error))
    try:
        server = ChatServer(Service(Catalog([file], any_name=options.any_name)), settings)
    except OSError as error:
        hint = "; choose another with --port" if error.errno == errno.EADDRINUSE else ""
        return _complain(f"cannot listen on {settings.host} port {settings.port}: {error.strerror or error}{hint}")
    return _serve(server, _Loader(server, file, options))


def _serve(server: ChatServer, loader: _Loader) -> int:
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.suppress(KeyboardInterrupt):
        loader.start()
        server.serve_forever()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # A second one ends the process at once.
    server.close()
    status = 1 if loader.has_failed else 0
    if loader.is_alive():
        # Loading cannot be stopped, and the interpreter must not be taken apart under it.
        sys.stderr.flush()
        os._exit(status)
    return status


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


class _Loader(threading.Thread):
    """Loads the model while the server already answers; without a model it ends the server."""

    def __init__(self, server: ChatServer, file: ModelFile, options: argparse.Namespace) -> None:
        super().__init__(name="localchat-loader", daemon=True)
        self.has_failed = False
        self._server = server
        self._file = file
        self._options = options
        self._shown = -1

    def run(self) -> None:
        try:
            self._server.service.ready(self._load())
        except Exception as error:
            self.has_failed = True
            self._clear()
            log.debug("loading failed", exc_info=True)
            _complain(f"cannot load {_fault_of(self._file.path) or f'{self._file.path}: {error}'}")
            self._server.shutdown()
            return
        self._clear()
        url = self._server.url + "/v1"
        _say(f"localchat is ready: {self._file.name} at {url} (Ctrl-C ends it)")
        _say(f'try: python -m localchat --base-url {url} "What is your name?"')

    def _load(self) -> Model:
        from .generation.model import Model
        from .generation.reasoning_limit import ReasoningDefaults

        options = self._options
        load_options = LoadOptions(
            n_ctx=options.ctx,
            n_slots=options.parallel,
            n_gpu_layers=options.gpu_layers,
            n_threads=options.threads,
            speculates=not options.no_speculation,
        )
        engine = load(
            str(self._file.path),
            load_options,
            draft_path=options.draft,
            cache_folder=options.cache_dir,
            cache_bytes=(options.cache_size or _DEFAULT_CACHE_MB) << 20,
            max_copied_bytes=options.cache_ram << 20,
            proof_model=str(DEMO_PATH),
            max_queue=options.queue,
            progress=self._show,
        )
        try:
            defaults = {name: value for said in options.default for name, value in said.items()}
            return Model(
                self._file.name,
                engine,
                max_tokens=options.max_tokens,
                defaults=defaults,
                keep_tools=options.keep_tools,
                thinking=ReasoningDefaults(options.reasoning_budget, options.reasoning_budget_message),
            )
        except BaseException:
            engine.close()
            raise

    def _show(self, done: float) -> None:
        self._server.service.progress = done
        percent = int(done * 100)
        # A service may have no stderr at all; to fail here would end the loading.
        if percent != self._shown and sys.stderr is not None and sys.stderr.isatty():
            self._shown = percent
            print(f"\rloading {self._file.name}: {percent} %", end="", file=sys.stderr, flush=True)

    def _clear(self) -> None:
        if self._shown >= 0:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _fault_of(path: Path) -> str:
    """What is wrong with a model file by its header, in plainer words than llama.cpp has for it; "" for nothing."""
    try:
        read_header(path)
    except (GGUFError, OSError) as error:
        return str(error)
    return ""


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def _complain(message: str) -> int:
    _say(f"localchat.server: {message}")
    return 1


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    package_log = logging.getLogger("localchat")
    package_log.addHandler(handler)
    package_log.setLevel(logging.INFO)
    # llama.cpp tells at length how it loads a model.
    logging.getLogger("localchat.engine.llama").setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main())
