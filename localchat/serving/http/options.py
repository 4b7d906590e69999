"""The command line of the server: its options, and the checks that need no model."""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ... import __version__
from ..core import errors
from ..core.params import parse_default
from ..models.catalog import ModelFile, printable
from ..models.names import Catalog
from .access import is_loopback
from .logs import FORMATS
from .settings import Settings

log = logging.getLogger("localchat.server")

# The smallest --ctx, in tokens: a chat template with a short message takes some dozens.
MIN_CONTEXT = 256
# A warning is logged if --parallel is above this.
_MANY_REQUESTS = 64
# Numbers may be written as 8k or 1M. The units are powers of 1024, as usual for context sizes.
_NUMBER = re.compile(r"([+-]?\d+)([kKmMgG]?)")
# llama.cpp has 32-bit numbers, and would cut a larger one.
_MAX_NUMBER = (1 << 31) - 1
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
# The default of --drain, in seconds. Container runtimes kill a process 10 seconds after SIGTERM.
DEFAULT_DRAIN_S = 5


def read_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line; None: that of this process. Invalid options end the process with status 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.model is not None and options.model_option is not None:
        parser.error(
            f"two models are given, {options.model} and {options.model_option}: name one; --models-dir serves several"
        )
    options.model = options.model or options.model_option
    options.api_keys = [*options.api_keys, *([options.api_key] if options.api_key else [])]
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


def chosen_model(options: argparse.Namespace) -> ModelFile:
    """The model that the options name.

    Raises:
        ModelFileError: There is no such model.
        OSError: A folder cannot be read.
    """
    catalog = catalog_of(options)
    if options.model is None:
        file, why = catalog.default()
        if why:
            log.info("the model is %s: %s", file.name, why)
    else:
        file = catalog.find(options.model, takes_paths=True)
    return file if options.alias is None else replace(file, name=printable(options.alias))


def catalog_of(options: argparse.Namespace) -> Catalog:
    return Catalog(options.models_dir, options.models)


def serves_all(options: argparse.Namespace) -> bool:
    """Whether requests may name every model that is found. A model on the command line is served alone, unless a
    folder or a mapping file is given as well."""
    return options.model is None or bool(options.models_dir) or options.models is not None


def with_settings(options: argparse.Namespace, file: ModelFile) -> argparse.Namespace:
    """The options for one model: settings of a mapping file apply where the command line sets none."""
    merged = argparse.Namespace(**vars(options))
    for name, value in file.settings.items():
        if name in vars(options) and getattr(options, name) == _parser().get_default(name):
            setattr(merged, name, value)
    return merged


def option_warnings(options: argparse.Namespace) -> Iterator[str]:
    """The warnings about slow options that are logged at the start."""
    n_cores = os.cpu_count() or 1
    if options.threads > n_cores:
        yield f"--threads {options.threads} on {n_cores} cores: the threads wait for each other; {n_cores} are faster"
    if options.parallel > _MANY_REQUESTS:
        yield (
            f"--parallel {options.parallel}: each request is slow if this many share the KV cache and {n_cores} cores; "
            "with a smaller number, the others wait in the queue"
        )


def settings_of(options: argparse.Namespace) -> Settings:
    given = {f.name: getattr(options, f.name) for f in fields(Settings) if hasattr(options, f.name)}
    return Settings(**{**given, "api_keys": tuple(options.api_keys), "cors": tuple(options.cors)})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m localchat.server",
        description="Serve a model in the GGUF format to OpenAI-compatible clients.",
        epilog="Ctrl-C ends the server; SIGTERM ends it after the requests in flight.",
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="model file, folder with one, or name of a model (default: LOCALCHAT_MODEL, else the only model found, "
        "else the built-in one)",
    )
    parser.add_argument(
        "--models-dir",
        type=lambda path: Path(path).expanduser(),
        action="append",
        default=[],
        metavar="FOLDER",
        help="folder with models (may be repeated; default: ~/.localchat/models)",
    )
    parser.add_argument(
        "--models",
        type=_path,
        metavar="FILE",
        help="mapping file with names and settings of models (default: models.toml or models.json in --models-dir)",
    )
    parser.add_argument("--list", action="store_true", help="list the models of this machine, and exit")
    parser.add_argument("-m", "--model", dest="model_option", metavar="FILE", help="the same as MODEL.gguf")
    _add_models(parser)
    _add_http(parser)
    _add_access(parser)
    _add_engine(parser)
    _add_requests(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="report whether the model works on this machine, the memory it needs and its speed, then exit with "
        "status 0 (it works), 1 (it does not) or 3 (it works, and the report has advice)",
    )
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="format of the log, and of the report of --check (default: %(default)s)",
    )
    parser.add_argument("--version", action="version", version=f"localchat {__version__}")
    return parser


def _add_models(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("several models").add_argument
    add(
        "--max-models",
        type=_between(1),
        default=0,
        metavar="N",
        help="loaded models; for a further one, the least recently used one is ended (default: by memory)",
    )
    add(
        "--idle-unload",
        type=_minutes,
        default=math.inf,
        metavar="MINUTES",
        help="end a model that no request has used for this time (default: never)",
    )
    add("--no-wait", action="store_true", help="answer 503 while a model loads; by default, requests wait")


def _add_http(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("connections").add_argument
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for all (default: %(default)s)")
    add("--port", type=_between(0, 65535), default=8080, help="port; 0 for any free one (default: %(default)s)")
    add("--uds", type=_path, metavar="PATH", help="listen on this Unix socket instead of an address")
    add("--tls-cert", type=_path, metavar="FILE", help="serve HTTPS with the certificates in this file (PEM)")
    add("--tls-key", type=_path, metavar="FILE", help="private key of the certificate (default: in --tls-cert)")
    add(
        "--drain",
        type=_between(0),
        default=DEFAULT_DRAIN_S,
        metavar="SECONDS",
        help="after SIGTERM, time for requests in flight to end (default: %(default)s)",
    )


def _add_access(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("access").add_argument
    add("--no-page", dest="has_page", action="store_false", help="do not serve the chat page at /")
    add(
        "--api-key",
        type=_key,
        default=os.environ.get("LOCALCHAT_API_KEY") or None,
        metavar="KEY",
        help="require this key; prefer LOCALCHAT_API_KEY, since other users can see the options of a process",
    )
    add(
        "--api-key-file",
        type=_keys,
        default=[],
        dest="api_keys",
        metavar="FILE",
        help="require one of the keys in this file, one per line",
    )
    add("--insecure", action="store_true", help="allow a --host that the network can reach without a key")
    add(
        "--cors",
        type=_origin,
        action="append",
        default=[],
        metavar="ORIGIN",
        help="allow web pages of this origin, such as https://example.org, or * for all (may be repeated)",
    )


def _add_engine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and memory")

    def number(*names: str, low: int, high: int = _MAX_NUMBER, default: int, help: str) -> None:
        group.add_argument(*names, type=_between(low, high), default=default, metavar="N", help=help)

    group.add_argument(
        "-c",
        "--ctx",
        "--ctx-size",
        type=_context,
        default=0,
        metavar="N",
        help="context size: tokens of a request, prompt and output together (default: that of the model, or less to "
        "save memory)",
    )
    number("-np", "--parallel", low=1, default=8, help="requests that run at the same time (default: %(default)s)")
    number("--queue", low=0, default=256, help="requests that may wait in the queue (default: %(default)s)")
    add = group.add_argument
    add(
        "-ngl",
        "--gpu-layers",
        "--n-gpu-layers",
        type=_layers,
        metavar="N",
        help="layers on the GPU; -1 for all (default: auto, as many as fit)",
    )
    add("--split-mode", choices=("none", "layer", "row"), help="how several GPUs share a model (default: layer)")
    add(
        "--tensor-split",
        type=_shares,
        default=(),
        metavar="N,N,...",
        help="share of each GPU, such as 3,1 (default: by their free memory)",
    )
    number("--main-gpu", low=0, default=0, help="the GPU with --split-mode none (default: %(default)s)")
    add("--cpu-moe", action="store_true", help="keep the experts of a mixture-of-experts model in the machine's memory")
    add("--kv-type", choices=("f16", "q8_0", "q4_0"), default="f16", help="type of the KV cache (default: %(default)s)")
    add("--no-mmap", action="store_true", help="read the model file in place of mapping it into memory")
    add("--mlock", action="store_true", help="lock the weights in memory")
    number("-t", "--threads", low=0, high=512, default=0, help="CPU threads (default: chosen for the machine)")
    drafts = group.add_mutually_exclusive_group()
    drafts.add_argument(
        "--draft",
        type=os.path.expanduser,
        metavar="SMALL.gguf",
        help="draft model for speculative decoding: a smaller model with the same vocabulary",
    )
    drafts.add_argument(
        "--no-speculation",
        action="store_true",
        help="turn off speculative decoding; by default, text that repeats itself is drafted (prompt lookup)",
    )


def _add_requests(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("requests").add_argument
    add("--alias", metavar="NAME", help="name of the model (default: the name of the file)")
    add("--any-name", action="store_true", help="accept every model name in requests")
    add("--strict", action="store_true", help="refuse requests with unknown fields")
    add("--max-tokens", type=_between(1), metavar="N", help="default limit of output tokens (default: the context)")
    add(
        "--default",
        type=_sampling_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="default of a sampling parameter, such as temperature=0.7 (may be repeated)",
    )
    add("--keep-tools", action="store_true", help="put tools into the prompt even if 'tool_choice' is \"none\"")
    add("--allow-chat-template", action="store_true", help="accept 'chat_template' in requests")
    add("--thought-field", action="store_true", help="repeat the reasoning in a field 'thought' beside the choices")
    add(
        "--reasoning-budget",
        type=_between(-1),
        default=-1,
        metavar="N",
        help="default limit of reasoning tokens; 0 ends reasoning at once, -1 means no limit (default: %(default)s)",
    )
    add("--reasoning-budget-message", default="", metavar="TEXT", help="text that ends reasoning at the limit")


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
    """Minutes as seconds."""
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of minutes above 0, got {text!r}")
    return minutes * 60


def _context(text: str) -> int:
    value = _between(0)(text)
    if 0 < value < MIN_CONTEXT:
        raise argparse.ArgumentTypeError(f"must be at least {MIN_CONTEXT}, or 0 for the default, got {value}")
    return value


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
    keys = [_key(line) for line in lines if line.strip()]
    if not keys:
        raise argparse.ArgumentTypeError(f"{text} has no key: write one per line")
    return keys


def _origin(text: str) -> str:
    """An origin as browsers send it: a scheme and a host, no path."""
    if re.fullmatch(r"(?i)\*|null|[a-z][a-z0-9+.-]*://[^/\s]+/?", text) is None:
        raise argparse.ArgumentTypeError(f"expected * or an origin, such as https://example.org, got {text!r}")
    return text


def _sampling_value(text: str) -> dict[str, Any]:
    try:
        return parse_default(text)
    except errors.BadRequest as error:
        raise argparse.ArgumentTypeError(error.message) from error
