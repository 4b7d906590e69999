"""`python -m localchat.server [MODEL.gguf]`: an OpenAI-compatible chat server on http.server, and its command line.

Parses the options, opens the port, and then loads the model while the server already responds. The HTTP server
itself is in serving/http/http_server.py. The model runs in a process of its own (serving/engine/front.py): this process
imports neither llama.cpp nor numpy.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import math
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .serving.core.errors import NO_MEMORY, BadRequest
from .serving.core.params import parse_default
from .serving.engine.tuning import LIBRARY
from .serving.http.access import is_loopback
from .serving.http.connections import listening, why_not_listening
from .serving.http.loading import Loader
from .serving.http.logs import log_to_stderr, report_failure
from .serving.http.options import Options
from .serving.models.catalog import Catalog
from .serving.models.memory import gigabytes
from .serving.models.model_file import ModelFile, ModelFileError, printable, summary_of

if TYPE_CHECKING:
    from .serving.http.http_server import ChatServer

# The functions below import the HTTP server, which imports libraries that `main` first checks for.

log = logging.getLogger("localchat.server")

# Signals within this time count as one: `timeout` and systemd send a signal to the process and to its process group.
ONE_SIGNAL_S = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C or SIGTERM, then return 0; 1 if the server or the model cannot start."""
    _open_standard_files()
    options = read_options(arguments)
    log_to_stderr()
    catalog = Catalog(options.models_dir, options.models)
    # A model on the command line is served alone, unless a folder or a mapping file is given as well.
    serves_all = options.model is None or options.models_dir or options.models
    try:
        if options.lists_models:
            return _print(_list_text(catalog.models()))
        missing = [name for name in ("llama_cpp", "jinja2") if importlib.util.find_spec(name) is None]
        if missing:
            return report_failure(f"{missing[0]} is not installed: {sys.executable} -m pip install {LIBRARY}")
        if importlib.util.find_spec("llguidance") is None:
            log.warning("outputs cannot be constrained without llguidance: pip install llguidance (Python 3.10)")
        file = chosen_model(options, catalog)
        problem = summary_of(file).problem
        if problem:
            return report_failure(f"cannot load {problem}")
    except (ModelFileError, OSError) as error:
        return report_failure(str(error))
    if not options.api_keys and not options.uds and not is_loopback(options.host):
        log.warning("every client that reaches %s can use this server: set LOCALCHAT_API_KEY", options.host)
    try:
        with listening(options) as listener:
            return _serve(options, file, catalog if serves_all else None, listener)
    except OSError as error:
        return report_failure(why_not_listening(options, error))
    except (RuntimeError, MemoryError) as error:
        return report_failure(f"cannot start: {error or NO_MEMORY}")


def _open_standard_files() -> None:
    """Open those of stdin, stdout and stderr that are closed to nothing. Otherwise a connection to an engine process
    would get the number of one of them, which means another file in that process."""
    number = -1
    while number <= 2:
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)


def _print(text: str) -> int:
    """Write a text to stdout, with escapes for characters that its encoding lacks. Returns the exit status."""
    if sys.stdout is not None:
        encoding = sys.stdout.encoding or "utf-8"
        try:
            print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
        except BrokenPipeError:  # Its reader, such as `head`, has ended. Python would report that again at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _list_text(models: Iterable[ModelFile]) -> str:
    """A table of models for a terminal. The last column is the place, or why the header cannot be read."""
    rows = [("NAME", "SIZE", "QUANTISATION", "CONTEXT", "FOUND IN")]
    for model in models:
        header = summary_of(model)
        context = f"{header.n_ctx_train:,}" if header.n_ctx_train else ""
        place = printable(f"{model.source}: {header.problem or model.path}")
        rows.append((model.name, gigabytes(model.n_bytes), header.quantisation, context, place))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[4]]) for row in rows)


def _serve(options: Options, file: ModelFile, catalog: Catalog | None, listener: socket.socket) -> int:
    loader = Loader(file, options)
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(loader):
        # These imports take as long as the engine process takes to load a small model.
        from .serving.http.http_server import ChatServer
        from .serving.models.service import Service

        service = Service(
            file,
            catalog=catalog,
            load=loader.load,
            any_name=options.any_name,
            max_models=options.max_models,
            idle_unload_s=options.idle_unload,
            waits=options.waits,
        )
        server = ChatServer(service, options, listener)
        with contextlib.ExitStack() as closing:
            # They are called in reverse order, so that `server.close` does not wait until a model has been loaded.
            for close in (server.close, loader.close, service.stop):
                closing.callback(close)
            loader.url, loader.on_failure = server.url, server.shutdown
            service.load(service.default)
            _stop_on_signals(server, options.drain)
            server.serve_forever()
    return 1 if loader.has_failed else 0


def _stop_on_signals(server: ChatServer, drain_s: float) -> None:
    """Install signal handlers: SIGTERM drains the server, Ctrl-C closes it now, a later second one kills it."""
    first_at: float | None = None

    def stop(number: int, frame: object) -> None:
        nonlocal first_at
        if first_at is None:
            first_at = time.monotonic()
            server.drain(drain_s if number == signal.SIGTERM else 0)
            if not server.endpoints.n_in_flight or number != signal.SIGTERM:
                raise KeyboardInterrupt
        elif time.monotonic() - first_at > ONE_SIGNAL_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


# --- the command line ---

# The smallest --ctx, in tokens: a chat template with a short message takes some dozens.
MIN_CONTEXT = 256
# Numbers may be written as 8k or 1M. The units are powers of 1024, as usual for context sizes.
_NUMBER = re.compile(r"([+-]?\d+)([kKmMgG]?)")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# llama.cpp has 32-bit numbers, and would cut a larger one.
_MAX_NUMBER = (1 << 31) - 1


def read_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse a command line; None: that of this process. Invalid options end the process with status 2."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    model, key = given.pop("model_option"), given.pop("api_key")
    if model is not None and given["model"] is not None:
        parser.error(f"two models are given, {given['model']} and {model}: name one; --models-dir serves several")
    given["model"] = given["model"] or model
    given["api_keys"] = [*given["api_keys"], *([key] if key else [])]
    given["defaults"] = {name: value for defaults in given["defaults"] for name, value in defaults.items()}
    options = Options(**given)
    if options.tls_key and not options.tls_cert:
        parser.error("--tls-key is the key of a certificate: add --tls-cert")
    if options.uds and options.tls_cert:
        parser.error("--uds cannot be combined with --tls-cert: a Unix socket cannot be reached from the network")
    is_open = not options.uds and not options.api_keys and not is_loopback(options.host)
    if is_open and not options.insecure:
        parser.error(
            f"--host {options.host} can be reached from the network: set a key (LOCALCHAT_API_KEY or --api-key-file), "
            "or add --insecure to allow requests without a key"
        )
    return options


def chosen_model(options: Options, catalog: Catalog) -> ModelFile:
    """The model that the options name. Raises ModelFileError if there is none, or OSError."""
    file = catalog.default() if options.model is None else catalog.find(options.model, takes_paths=True)
    return file if options.alias is None else replace(file, name=printable(options.alias))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m localchat.server",
        description="Serve a model in the GGUF format to OpenAI-compatible clients.",
        epilog="Ctrl-C ends the server; SIGTERM ends it after the requests in flight.",
    )
    parser.set_defaults(**vars(Options()))
    add: Callable[..., Any] = parser.add_argument
    add("--version", action="version", version=f"localchat {__version__}")
    model = "model file, folder with one, or name (default: LOCALCHAT_MODEL, the only model found, or the built-in one)"
    add("model", nargs="?", metavar="MODEL", help=model)
    add("-m", "--model", dest="model_option", metavar="FILE", help="the same as MODEL")
    folder = "folder with models (may be repeated; default: ~/.localchat/models)"
    add("--models-dir", type=_path, action="append", default=[], metavar="FOLDER", help=folder)
    mapping = "mapping file with names and settings of models (default: models.toml or models.json in --models-dir)"
    add("--models", type=_path, metavar="FILE", help=mapping)
    add("--list", dest="lists_models", action="store_true", help="list the models of this machine, and exit")

    add = parser.add_argument_group("several models").add_argument
    most = "loaded models; for a further one, the least recently used one is ended (default: by memory)"
    add("--max-models", type=_between(1), metavar="N", help=most)
    idle = "end a model that no request has used for this time (default: never)"
    add("--idle-unload", type=_minutes, metavar="MINUTES", help=idle)
    add("--no-wait", dest="waits", action="store_false", help="answer 503 while a model loads, in place of waiting")

    add = parser.add_argument_group("connections and access").add_argument
    add("--host", help="address to listen on; 0.0.0.0 for all (default: %(default)s)")
    add("--port", type=_between(0, 65535), help="port; 0 for any free one (default: %(default)s)")
    add("--uds", type=_path, metavar="PATH", help="listen on this Unix socket instead of an address")
    add("--tls-cert", type=_path, metavar="FILE", help="serve HTTPS with the certificates in this file (PEM)")
    add("--tls-key", type=_path, metavar="FILE", help="private key of the certificate (default: in --tls-cert)")
    drain = "after SIGTERM, time for requests in flight to end (default: %(default)s)"
    add("--drain", type=_between(0), metavar="SECONDS", help=drain)
    key = "require this key; prefer LOCALCHAT_API_KEY, since other users can see the options of a process"
    add("--api-key", type=_key, default=os.environ.get("LOCALCHAT_API_KEY") or None, metavar="KEY", help=key)
    add("--api-key-file", type=_keys, dest="api_keys", metavar="FILE", help="require a key of this file, one per line")
    add("--insecure", action="store_true", help="allow a --host that the network can reach without a key")
    cors = "allow web pages of this origin, such as https://example.org, or * for all (may be repeated)"
    add("--cors", type=_origin, action="append", default=[], metavar="ORIGIN", help=cors)
    add("--no-page", dest="has_page", action="store_false", help="do not serve the chat page at /")

    add = parser.add_argument_group("model and memory").add_argument
    size = "context size: tokens of a request, prompt and output together (default: by model and memory)"
    add("-c", "--ctx", "--ctx-size", dest="n_ctx", type=_context, metavar="N", help=size)
    parallel = "requests that run at the same time (default: %(default)s)"
    add("-np", "--parallel", dest="n_parallel", type=_between(1), metavar="N", help=parallel)
    queue = "requests that may wait in the queue (default: %(default)s)"
    add("--queue", dest="max_queue", type=_between(0), metavar="N", help=queue)
    layers = "layers on the GPU; -1 for all (default: auto, as many as fit)"
    add("-ngl", "--gpu-layers", "--n-gpu-layers", dest="n_gpu_layers", type=_layers, metavar="N", help=layers)
    add("--split-mode", choices=("none", "layer", "row"), help="how several GPUs share a model (default: layer)")
    shares = "share of each GPU, such as 3,1 (default: by their free memory)"
    add("--tensor-split", type=_shares, metavar="N,N,...", help=shares)
    add("--main-gpu", type=_between(0), metavar="N", help="the GPU with --split-mode none (default: %(default)s)")
    add("--cpu-moe", action="store_true", help="keep the experts of a mixture-of-experts model in the machine's memory")
    add("--kv-type", choices=("f16", "q8_0", "q4_0"), help="type of the KV cache (default: %(default)s)")
    no_mmap = "read the model file in place of mapping it into memory"
    add("--no-mmap", dest="use_mmap", action="store_false", help=no_mmap)
    add("--mlock", dest="use_mlock", action="store_true", help="lock the weights in memory")
    threads = "CPU threads (default: chosen for the machine)"
    add("-t", "--threads", dest="n_threads", type=_between(0, 512), metavar="N", help=threads)
    draft = "draft model for speculative decoding: a smaller model with the same vocabulary"
    add("--draft", dest="draft_path", type=os.path.expanduser, metavar="SMALL.gguf", help=draft)
    no_speculation = "turn off speculative decoding; by default, text that repeats itself is drafted (prompt lookup)"
    add("--no-speculation", dest="speculates", action="store_false", help=no_speculation)

    add = parser.add_argument_group("requests").add_argument
    add("--alias", metavar="NAME", help="name of the model (default: the name of the file)")
    add("--any-name", action="store_true", help="accept every model name in requests")
    add("--strict", action="store_true", help="refuse requests with unknown fields")
    add("--max-tokens", type=_between(1), metavar="N", help="default limit of output tokens (default: the context)")
    default = "default of a sampling parameter, such as temperature=0.7 (may be repeated)"
    value: Any = {"type": _sampling_value, "metavar": "NAME=VALUE", "help": default}
    add("--default", dest="defaults", action="append", default=[], **value)
    add("--keep-tools", action="store_true", help="put tools into the prompt even if 'tool_choice' is \"none\"")
    template = "accept 'chat_template' in requests"
    add("--allow-chat-template", dest="allow_template", action="store_true", help=template)
    add("--thought-field", action="store_true", help="repeat the reasoning in a field 'thought' beside the choices")
    budget = "default limit of reasoning tokens; 0 ends reasoning at once, -1 means no limit (default: %(default)s)"
    add("--reasoning-budget", type=_between(-1), metavar="N", help=budget)
    add("--reasoning-budget-message", metavar="TEXT", help="text that ends reasoning at the limit")
    return parser


def _between(low: int, high: int = _MAX_NUMBER) -> Callable[[str], int]:
    """A parser of numbers from `low` to `high`."""

    def integer(text: str) -> int:
        match = _NUMBER.fullmatch(text.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"expected a whole number, such as 4096 or 4k, got {text!r}")
        value = int(match[1]) * _UNITS[match[2].lower()]
        if not low <= value <= high:
            limit = f"at least {low}" if value < low else f"at most {high}"
            raise argparse.ArgumentTypeError(f"must be {limit}, got {value}")
        return value

    return integer


def _layers(text: str) -> int | None:
    return None if text == "auto" else _between(-1)(text)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(share) for share in text.split(","))
    except ValueError:
        shares = (-1,)
    if min(shares) < 0 or not any(shares) or not math.isfinite(sum(shares)):
        raise argparse.ArgumentTypeError(f"expected shares, such as 3,1, got {text!r}")
    return shares


def _minutes(text: str) -> float:
    """Parse minutes, return seconds."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of minutes above 0, got {text!r}")
    return minutes * 60


def _context(text: str) -> int:
    return 0 if text == "0" else _between(MIN_CONTEXT)(text)


def _path(text: str) -> Path:
    """A path. Expands "~", which shells do not expand in --option=~/file."""
    if not text:
        raise argparse.ArgumentTypeError("the file has no name")
    return Path(os.path.expanduser(text))


def _key(text: str) -> str:
    """A key without surrounding white space, such as the line break at the end of a file."""
    key = text.strip()
    if not key or not key.isprintable():
        raise argparse.ArgumentTypeError("the key is empty, or has characters that an HTTP header cannot have")
    return key


def _keys(text: str) -> list[str]:
    try:
        lines = _path(text).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"cannot read keys from {text}: {error}") from error
    keys = [_key(line) for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise argparse.ArgumentTypeError(f"{text} has no key: write one per line")
    return keys


def _origin(text: str) -> str:
    """An origin as browsers send it: a scheme and a host, perhaps with a slash at the end; or *, or null."""
    if re.fullmatch(r"(?i)\*|null|[a-z][a-z0-9+.-]*://[^/\s]+/?", text) is None:
        raise argparse.ArgumentTypeError(f"expected * or an origin, such as https://example.org, got {text!r}")
    return text


def _sampling_value(text: str) -> dict[str, Any]:
    try:
        return parse_default(text)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(error.message) from error


if __name__ == "__main__":
    sys.exit(main())
