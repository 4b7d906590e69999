"""Loads a model file in a child process first, so that a file that crashes llama.cpp does not end the server.

llama.cpp aborts the process at some damaged or hostile headers. A file that this build of the library has loaded
before is not checked again; it is known by its size, its time and a digest of its beginning.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from dataclasses import replace

from .library_build import library_key
from .saved_results import read_results, write_results
from .self_test import run_child
from .values import EngineError, LoadOptions

log = logging.getLogger("localchat.engine")

_FILE = "checked-models.json"
# One entry takes 70 bytes.
_MAX_RESULTS = 512
# The first bytes of a file, which the digest covers: the metadata and most of the vocabulary.
_DIGESTED_BYTES = 1 << 20
# The time limit: a GPU may compile its kernels first, and the disk may be slow.
_TIMEOUT_S = 300
_SLOWEST_BYTES_PER_S = 20e6
# The context of the child process.
_N_CTX = 512
# What ggml and C++ write before they abort.
_CAUSE = re.compile(r"(?m)^.*?(GGML_ASSERT\(.*\) failed|GGML_ABORT.*|what\(\):.*|fatal error.*)$")


def check_model_file(path: str, options: LoadOptions) -> None:
    """Load a file and decode a few tokens in a child process, unless this build has loaded the file before.

    An error of the child process is not reported: the caller loads the file as well, and has a better message.

    Raises:
        EngineError: llama.cpp crashes at the file, or takes too long.
    """
    key = _key(path, options)
    known = read_results(_FILE)
    if key in known:
        return
    log.info("checking %s in a child process first, since this build of llama.cpp has not loaded it before", path)
    timeout_s = _TIMEOUT_S + os.path.getsize(path) / _SLOWEST_BYTES_PER_S
    small = replace(options, n_ctx=_N_CTX, n_cells=_N_CTX, n_parallel=1)
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
        write_results(_FILE, {**known, key: True}, _MAX_RESULTS)


def _key(path: str, options: LoadOptions) -> str:
    status = os.stat(path)
    with open(path, "rb") as file:
        digest = hashlib.sha256(file.read(_DIGESTED_BYTES))
    settings = (status.st_size, status.st_mtime_ns, library_key(options), options.use_extra_bufts)
    digest.update(repr(settings).encode())
    return digest.hexdigest()
