"""Options: the name, type, default, range and help text of each, declared once.

`ModelOptions` are those of one model, `ServiceOptions` those of a server with several models. `server_options.py` has
the others. `server.py` makes the command line from the declarations, `models/sources.py` reads those of mapping files.
The docstring of a class is the title of its options in --help. A declaration has one line or two, so the formatter
leaves these classes as they are.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .fields import Fields

MIN_CONTEXT = 256  # The smallest --ctx, in tokens: a chat template with a short message takes some dozens.
# Numbers may be written as 8k or 1M. The units are powers of 1024, as usual for context sizes.
_NUMBER = re.compile(r"([+-]?\d+)([kKmMgG]?)")
WORKER_PORT, MAX_WORKERS = 50052, 16  # The port of a worker, and the limit of workers of a model, as in llama.cpp.
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def option(default: Any, usage: str, read: Any = str, *, help: str, repeats: bool = False, setting: str = "") -> Any:
    """A field that an option of the command line sets.

    Args:
        default: The value without the option, or a function that returns it. The option of a bool sets the other value.
        usage: The names of the option, and what --help shows in place of its value.
        read: Reads the value from a text, or raises ArgumentTypeError; or a tuple of the texts to choose from.
        repeats: Whether the option may be repeated. The values then make a list.
        setting: The name of a whole number or a file in mapping files, which set it for one model; "": they may not.
    """
    words = usage.split()
    arguments: dict[str, Any] = {"help": help, "default": default}
    if isinstance(default, bool):
        arguments["action"] = "store_false" if default else "store_true"
    elif isinstance(read, tuple):
        arguments["choices"] = read
    else:
        arguments.update(type=read, metavar=words[-1], **({"action": "append", "default": []} if repeats else {}))
    flags = [word for word in words if word[0] == "-"]
    metadata = {"flags": flags, "arguments": arguments, "read": read, "setting": setting}
    return field(**{"default_factory" if callable(default) else "default": default}, metadata=metadata)


@dataclass(frozen=True)
class Whole:
    low: int
    high: int = (1 << 31) - 1  # llama.cpp has 32-bit numbers, and would cut a larger one.
    or_zero: bool = False  # Whether 0 is valid below `low`.
    none: str | None = None  # The text of None on the command line.

    def __call__(self, text: str) -> int | None:
        """Read an argument of the command line."""
        if text == self.none:
            return None
        match = _NUMBER.fullmatch(text.strip())
        if match is None:
            raise ArgumentTypeError(f"expected a whole number, such as 4096 or 4k, got {text!r}")
        value = int(match[1]) * _UNITS[match[2].lower()]
        if not self.low <= value <= self.high and not (self.or_zero and value == 0):
            limit = f"at least {self.low}" if value < self.low else f"at most {self.high}"
            raise ArgumentTypeError(f"must be {limit}, got {value}")
        return value

    def setting(self, body: Fields, name: str) -> int | None:
        """Read a setting of a mapping file; None if there is none."""
        body.integer(name)  # The error of another type has no range.
        value = body.integer(name, 0 if self.or_zero else self.low, self.high)
        if value and value < self.low:
            body.refuse(name, f"0 or an integer of at least {self.low}")
        return value


def _shares(text: str) -> tuple[float, ...]:
    with contextlib.suppress(ValueError):
        shares = tuple(float(share) for share in text.split(","))
        if min(shares) >= 0 and any(shares) and math.isfinite(sum(shares)):
            return shares
    raise ArgumentTypeError(f"expected shares, such as 3,1, got {text!r}")


def _workers(text: str) -> tuple[str, ...]:
    """Addresses of workers, each with its port."""
    addresses: list[str] = []
    for address in text.split(","):
        host, colon, port = address.strip().partition(":")
        if not host or (colon and not (port.isdecimal() and int(port) < 65536)):
            raise ArgumentTypeError(f"expected hosts with their ports, such as gpu1:{WORKER_PORT}, got {text!r}")
        addresses.append(f"{host}:{int(port or WORKER_PORT)}")
    if len(set(addresses)) < len(addresses) or len(addresses) > MAX_WORKERS:
        raise ArgumentTypeError(f"expected at most {MAX_WORKERS} workers, each once, got {text!r}")
    return tuple(addresses)


def _minutes(text: str) -> float:
    """Read minutes, return seconds."""
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text) * 60
    raise ArgumentTypeError(f"expected a number of minutes above 0, got {text!r}")


def path_of(text: str) -> Path:
    """A path. Expands "~", which shells do not expand in --option=~/file."""
    if not text:
        raise ArgumentTypeError("the file has no name")
    return Path(os.path.expanduser(text))


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter of a model."""

    name: str  # In lists and requests.
    path: str
    scale: float = 1.0
    problem: str = ""  # Why it cannot be used; "": it can be, or has not been loaded.


def read_adapter(text: str) -> Adapter:
    """Read NAME=FILE or NAME=FILE@SCALE."""
    name, _, file = text.partition("=")
    if not name.strip() or not file:
        raise ArgumentTypeError(f"expected NAME=FILE or NAME=FILE@SCALE, got {text!r}")
    path, at, scale = file.rpartition("@")
    if not at or os.path.exists(os.path.expanduser(file)):  # The "@" belongs to the name of the file.
        path, scale = file, "1"
    with contextlib.suppress(ValueError):
        if math.isfinite(float(scale)):
            return Adapter(name.strip(), os.path.expanduser(path), float(scale))
    raise ArgumentTypeError(f"the scale of the adapter {name!r} must be a number, got {scale!r}")


@dataclass(frozen=True)
class ServiceOptions:
    """several models"""

    # fmt: off
    models_dir: Sequence[Path] = option((), "--models-dir FOLDER", path_of, repeats=True,
        help="folder with models (may be repeated; default: ~/.localchat/models)")
    models: Path | None = option(None, "--models FILE", path_of,
        help="mapping file with names and settings of models (default: models.toml or models.json in --models-dir)")
    lists_models: bool = option(False, "--list", help="list the models of this machine, and exit")
    get: str | None = option(None, "--get PUBLISHER/REPOSITORY[:QUANTISATION]",
        help="fetch a model from Hugging Face's hub, write how to serve it, and exit")
    max_models: int = option(0, "--max-models N", Whole(1),
        help="loaded models; for a further one, the least recently used one is ended (default: by memory)")
    idle_unload: float = option(math.inf, "--idle-unload MINUTES", _minutes,  # In seconds.
        help="end a model that no request has used for this time (default: never)")
    waits: bool = option(True, "--no-wait", help="answer 503 while a model loads, in place of waiting")
    any_name: bool = option(False, "--any-name", help="accept every model name in requests")


@dataclass(frozen=True)
class ModelOptions:
    """model and memory"""

    # fmt: off
    # 0: the context of the model's training, if memory allows.
    n_ctx: int = option(0, "-c --ctx --ctx-size N", Whole(MIN_CONTEXT, or_zero=True), setting="ctx",
        help="context size: tokens of a request, prompt and output together (default: by model and memory)")
    n_parallel: int = option(8, "-np --parallel N", Whole(1), setting="parallel",
        help="requests that run at the same time (default: %(default)s)")
    max_queue: int = option(256, "--queue N", Whole(0),
        help="requests that may wait in the queue (default: %(default)s)")
    n_gpu_layers: int | None = option(None, "-ngl --gpu-layers --n-gpu-layers N", Whole(-1, none="auto"),
        setting="gpu_layers", help="layers on the GPU; -1 for all (default: auto, as many as fit)")
    split_mode: str | None = option(None, "--split-mode", ("none", "layer", "row"),
        help="how several GPUs share a model (default: layer)")
    tensor_split: tuple[float, ...] = option((), "--tensor-split N,N,...", _shares,
        help="share of each GPU, such as 3,1 (default: by their free memory)")
    main_gpu: int = option(0, "--main-gpu N", Whole(0), help="the GPU with --split-mode none (default: %(default)s)")
    workers: tuple[str, ...] = option((), "--rpc HOST:PORT,...", _workers,
        help="workers (python -m localchat.worker) that compute layers of the model on other machines")
    rpc_timeout: int = option(300, "--rpc-timeout SECONDS", Whole(1),
        help="a step that workers take longer to compute ends with an error (default: %(default)s)")
    cpu_moe: bool = option(False, "--cpu-moe",
        help="keep the experts of a mixture-of-experts model in the machine's memory")
    kv_type: str = option("f16", "--kv-type", ("f16", "q8_0", "q4_0"),
        help="type of the KV cache (default: %(default)s)")
    use_mmap: bool = option(True, "--no-mmap", help="read the model file in place of mapping it into memory")
    use_mlock: bool = option(False, "--mlock", help="lock the weights in memory")
    n_threads: int = option(0, "-t --threads N", Whole(0, 512), help="CPU threads (default: chosen for the machine)")
    mmproj: str | None = option(None, "--mmproj FILE", os.path.expanduser, setting="mmproj",
        help="projector of the model, with which it takes images or sound (default: the one beside the model)")
    finds_mmproj: bool = option(True, "--no-mmproj", help="load no projector")
    adapters: Sequence[Adapter] = option((), "--lora NAME=FILE[@SCALE]", read_adapter, repeats=True,
        help="LoRA adapter of the model, which requests name as a model (may be repeated)")
    speculates: bool = option(True, "--no-speculation",
        help="turn off speculative decoding; by default, text that repeats itself is drafted (prompt lookup)")


# The options that mapping files may set, by the names of the settings.
SETTINGS: Mapping[str, Any] = {f.metadata["setting"]: f for f in fields(ModelOptions) if f.metadata["setting"]}
