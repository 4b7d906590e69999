"""Tries a model file in a child process first, so that one which crashes llama.cpp does not take the server with it.

llama.cpp aborts the process at some damaged or hostile headers. A file that was loaded well before with this build of
the library is not tried again; its size, its time and a digest of its beginning are remembered for that.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import replace

from .proof import library_key, read_verdicts, run_child, write_verdicts
from .values import EngineError, LoadOptions

log = logging.getLogger("localchat.engine")

_FILE = "tried-models.json"
# One entry is 70 bytes.
_MAX_REMEMBERED = 512
# The part of a file that the digest covers: all that describes a model and most of its vocabulary.
_DIGESTED_BYTES = 1 << 20
# A slow disk reads a large file with this many bytes in a second; a GPU may compile its kernels for minutes.
_SLOWEST_BYTES_PER_S = 20e6
_PATIENCE_S = 300
# Large enough a context for the few tokens of the trial.
_TRIAL_TOKENS = 512
# What ggml and C++ write before they abort.
_CAUSE = re.compile(r"(?m)^.*?(GGML_ASSERT\(.*\) failed|GGML_ABORT.*|what\(\):.*|fatal error.*)$")


def try_model(path: str, options: LoadOptions) -> None:
    """Load a file and decode a few tokens in a child process, unless it was loaded well before.

    A file that fails in order is left to the caller, whose error is the better one.

    Raises:
        EngineError: llama.cpp crashes at it, or takes too long.
    """
    key = _key(path, options)
    known = read_verdicts(_FILE)
    if key in known:
        return
    log.info("trying %s in a process of its own first, since this build of llama.cpp has not loaded it before", path)
    timeout_s = _PATIENCE_S + os.path.getsize(path) / _SLOWEST_BYTES_PER_S
    small = replace(options, n_ctx=_TRIAL_TOKENS, n_cells=_TRIAL_TOKENS, n_slots=1)
    child = run_child(small, path, timeout_s)
    if child.killed_by == "SIGKILL":
        raise EngineError("the system killed llama.cpp while it loaded the file (SIGKILL): most likely memory is short")
    if child.killed_by is not None:
        cause = _CAUSE.search(child.output)
        raise EngineError(
            f"llama.cpp crashes at this file ({child.killed_by}{f', {cause[1].strip()}' if cause else ''}): "
            "it is damaged, or this build does not support it; download it again"
        )
    if child.failure is None:
        write_verdicts(_FILE, {**known, key: True}, _MAX_REMEMBERED)


def _key(path: str, options: LoadOptions) -> str:
    status = os.stat(path)
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read(_DIGESTED_BYTES))
    settings = (status.st_size, status.st_mtime_ns, library_key(options), options.use_extra_bufts)
    digest.update(repr(settings).encode())
    return digest.hexdigest()
