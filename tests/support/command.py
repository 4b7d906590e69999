"""Runs the command `python -m localchat.server` in this process, for arguments with which it ends without serving."""

import contextlib
import io
import logging
from collections.abc import Iterator
from subprocess import CompletedProcess
from unittest import mock

from localchat import server


def run_command(*arguments: str) -> CompletedProcess[str]:
    """Run the command with these arguments. Raises AssertionError if it begins to serve."""
    out, err = io.StringIO(), io.StringIO()
    loader = mock.Mock(serve=mock.Mock(side_effect=AssertionError("the command serves")))
    serving = mock.patch.object(server, "Loader", return_value=loader)
    with restored(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), serving:
        try:
            status = server.main(["--port", "0", *arguments])  # Another server may use the default port.
        except SystemExit as done:
            status = done.code if isinstance(done.code, int) else 1
    return CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restore the process-wide settings that the command changes."""
    logs = [logging.getLogger(name) for name in ("localchat", "localchat.engine.llama")]
    before = [(log.handlers, log.level) for log in logs]
    try:
        yield
    finally:
        for log, (handlers, level) in zip(logs, before):
            log.handlers = handlers
            log.setLevel(level)
