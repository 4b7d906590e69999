"""`python -m localchat.server [MODEL.gguf]`: an OpenAI-compatible chat server on http.server, and its command line.

Parses the options, opens the port, and loads the model while the server already responds. The HTTP server
itself is in serving/http/http_server.py. The model runs in a process of its own (serving/engine/process.py): this
process imports neither llama.cpp nor numpy.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from . import __version__
from .serving.core.errors import NO_MEMORY
from .serving.core.server_options import GROUPS, Options
from .serving.engine.tuning import LIBRARY
from .serving.http.access import is_loopback
from .serving.http.connections import CertificateError, listening, why_not_listening
from .serving.loading.load_log import StartLog
from .serving.loading.loader import Loader
from .serving.loading.service import Service
from .serving.loading.stderr_log import log_to_stderr, report_failure
from .serving.models.adapters import adapter_problem, adapters_in, with_adapters
from .serving.models.catalog import Catalog
from .serving.models.memory import gigabytes
from .serving.models.model_file import ModelFile, ModelFileError, printable_name, projector_of, summary_of

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
        for folder in options.models_dir:
            if not folder.is_dir():
                return report_failure(f"--models-dir: there is no folder {printable_name(str(folder))}")
        if options.lists_models:
            return _print(_list_text(catalog.models()))
        missing = [name for name in ("llama_cpp", "jinja2") if importlib.util.find_spec(name) is None]
        if missing:
            return report_failure(f"{missing[0]} is not installed: {sys.executable} -m pip install {LIBRARY}")
        if importlib.util.find_spec("llguidance") is None:
            log.warning("outputs cannot be constrained without llguidance: pip install llguidance (Python 3.10)")
        if options.get is not None:
            name = _fetch(options.get, catalog, options.finds_mmproj)
            return _print(f"serve it: {sys.executable} -m localchat.server {name}")
        file = chosen_model(options, catalog)
        if serves_all:
            catalog.models()  # An invalid mapping file ends the start, and later only a change of it.
        problem = summary_of(file).problem
        if problem:
            return report_failure(f"cannot load {printable_name(str(file.path))}: {problem}")
    except (ModelFileError, OSError) as error:
        return report_failure(str(error))
    if not options.api_keys and not options.uds and not is_loopback(options.host):
        log.warning("every client that reaches %s can use this server: set LOCALCHAT_API_KEY", options.host)
    try:
        with listening(options) as listener:
            return _serve(options, file, catalog if serves_all else None, listener)
    except CertificateError as error:
        return report_failure(str(error))
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


def _fetch(name: str, catalog: Catalog, with_projector: bool) -> str:
    """Fetch a model from the hub, or find it here if that fails. Returns its name."""
    from .serving.models import hub

    try:
        return hub.fetch(name, _free_memory, with_projector=with_projector)
    except KeyboardInterrupt:
        raise ModelFileError("interrupted: the same command goes on where this one ended") from None
    except ModelFileError as error:
        with contextlib.suppress(ModelFileError):
            local_name = catalog.find(name).name
            log.warning("%s; %s is here already", error, local_name)
            return local_name
        raise


def _free_memory() -> tuple[int, str]:
    """The bytes that are free for a model, and where. Another process loads llama.cpp and the driver of the GPU."""
    code = "from localchat.serving.engine.llama.devices import memory_for_models as f; print(f())"
    process = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    n_free, _, where = process.stdout.strip().partition(" ")
    return int(n_free or 0), where


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
    rows = [("NAME", "SIZE", "QUANTISATION", "CONTEXT", "INPUT", "FOUND IN")]
    for model in models:
        header = summary_of(model)
        context = f"{header.n_ctx_train:,}" if header.n_ctx_train else ""
        place = printable_name(f"{model.source}: {model.path}") + (f": {header.problem}" if header.problem else "")
        projector = projector_of(model)
        modalities = () if projector is None else summary_of(ModelFile(projector, "")).modalities
        inputs = ", ".join(("text", *modalities))
        rows.append((model.name, gigabytes(model.n_bytes), header.quantisation, context, inputs, place))
        for adapter in model.adapters:
            size = gigabytes(ModelFile(Path(adapter.path), "").n_bytes)
            place = printable_name(f"adapter of {model.name}: {adapter.path}")
            rows.append((adapter.name, size, "LoRA", context, inputs, place))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join("  ".join([*(cell.ljust(w) for cell, w in zip(row, widths)), row[5]]) for row in rows)


def _serve(options: Options, file: ModelFile, catalog: Catalog | None, listener: socket.socket) -> int:
    loader, start_log = Loader(options), StartLog(options)
    service = Service(file, options, catalog=catalog, load=loader.load, load_log=start_log)
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(loader):
        service.request_load(service.default)
        # These imports take as long as the engine process takes to load a small model.
        from .serving.http.http_server import ChatServer

        server = ChatServer(service, options, listener)
        with contextlib.ExitStack() as closing:
            # They are called in reverse order, so that `server.close` does not wait until a model has been loaded.
            for close in (server.close, loader.close, service.stop):
                closing.callback(close)
            has_several_models = catalog is not None and len(catalog.models()) > 1
            start_log.on_open(server.url, server.shutdown, has_several_models=has_several_models)
            _stop_on_signals(server, options.drain)
            server.serve_forever()
    return 1 if start_log.has_failed else 0


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


def read_options(arguments: Sequence[str] | None = None) -> Options:
    """Parse a command line; None: that of this process. Invalid options end the process with status 2."""
    parser = _parser()
    values = vars(parser.parse_args(arguments))
    model, key = values.pop("model_option"), values["api_key"]
    if model is not None and values["model"] is not None:
        parser.error(f"two models are given, {values['model']} and {model}: name one; --models-dir serves several")
    values["model"] = model if values["model"] is None else values["model"]
    values["api_keys"] = [*values["api_keys"], *([key] if key else [])]
    values["defaults"] = {name: value for defaults in values["defaults"] for name, value in defaults.items()}
    options = Options(**values)
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
    file = replace(file, workers=options.workers)
    file = file if options.mmproj is None else replace(file, projector=Path(options.mmproj))
    file = file if options.alias is None else replace(file, name=printable_name(options.alias))
    names = [file.name, *(adapter.name for adapter in options.adapters)]
    for i, adapter in enumerate(options.adapters):
        problem = adapter_problem(adapter, file.path)
        if adapter.name.casefold() in map(str.casefold, names[: i + 1]):
            problem = "the name is that of the model or of another adapter"
        if problem:
            raise ModelFileError(f"cannot load the adapter {adapter.name}: {problem}")
    return with_adapters(file, {file.name.casefold()}, adapters_in(file.path.parent), options.adapters)


class _Parser(argparse.ArgumentParser):
    """A parser with errors of one line: the usage has a line for each option. For an unknown option it names a similar
    one."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flags = [flag for group in GROUPS for option in fields(group) for flag in option.metadata["flags"]]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], flags, n=1)
            advice = f"did you mean {near[0]}?" if near else "--help lists the options"
            self.error(f"unknown argument {unknown[0]}; {advice}")
        return values

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"localchat.server: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m localchat.server",
        description="Serve a model in the GGUF format to OpenAI-compatible clients.",
        epilog="Ctrl-C ends the server; SIGTERM ends it after the requests in flight.",
    )
    parser.add_argument("--version", action="version", version=f"localchat {__version__}")
    model = "model file, folder with one, or name (default: LOCALCHAT_MODEL, the only model found, or the built-in one)"
    parser.add_argument("model", nargs="?", metavar="MODEL", help=model)
    parser.add_argument("-m", "--model", dest="model_option", metavar="FILE", help="the same as MODEL")
    for group in GROUPS:
        add = parser.add_argument_group(group.__doc__).add_argument
        for option in fields(group):
            add(*option.metadata["flags"], dest=option.name, **option.metadata["arguments"])
    parser.set_defaults(api_key=os.environ.get("LOCALCHAT_API_KEY") or None)
    return parser


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # Before the server runs, such as in a scan of a slow folder.
        sys.exit(128 + signal.SIGINT)
