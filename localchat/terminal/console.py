"""The input and the output of the command line: stdin, stdout, stderr, and the exit codes.

The output of the model goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from ..errors import IncompleteReply, IncompleteStream, LocalChatError, TimedOut

# The exit codes: a complete response, an error, wrong usage, a response that was cut, Ctrl-C.
OK, FAILED, USAGE, CUT, INTERRUPTED = 0, 1, 2, 3, 130

# Control characters and their replacements: escapes, and nothing for the carriage returns of Windows line ends.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n\r"}
_CONTROLS[ord("\r")] = ""

_PIPE_NOTICE_S = 2.0  # Seconds without the end of the piped input, after which the program reports that it waits.


def run_program(main: Callable[[], int]) -> None:
    """Run the main function of a program on the files of this process, and end the process with its exit code."""
    _use_utf8()
    # A Ctrl-C may come between the call of a coroutine function and its `await`.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    try:
        code = main()
    except KeyboardInterrupt:  # A second Ctrl-C, while the program ends after the first one.
        code = INTERRUPTED
    try:
        print(end="", flush=True)
    except (OSError, ValueError):
        # The output pipe was closed, or the disk is full. Python flushes stdout again at its end: let that succeed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or FAILED
    sys.exit(code)


def run_command(command: Callable[[], int]) -> int:
    """Run a command and return its exit code. An error becomes one line on stderr."""
    if sys.stdout is None:  # Closed by the shell (>&-).
        report("localchat: stdout is closed: there is no place to write the answer to")
        return FAILED
    try:
        code = command()
        print(end="", flush=True)  # Raise the error of a failed write here, not when Python exits.
        return code
    except KeyboardInterrupt:
        report("")
        return INTERRUPTED
    except BrokenPipeError:  # The reader of the output has ended, such as `head`.
        return FAILED
    except (
        LocalChatError,
        OSError,
        ImportError,  # Of the one file, which does not have all of the client.
        ValueError,
        TypeError,  # An option has a value of the wrong type.
    ) as error:
        report(f"localchat: {error}")
        partial = getattr(error, "partial", None)
        is_broken = isinstance(error, (IncompleteStream, TimedOut)) and partial and partial.choices
        return CUT if is_broken or isinstance(error, IncompleteReply) else FAILED


def _use_utf8() -> None:
    """Read and write pipes and files in UTF-8, whatever the locale: Windows has another encoding for them."""
    if isinstance(sys.stdin, io.TextIOWrapper) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8-sig")  # Without a byte order mark at the start.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Characters that the terminal cannot encode become "?".
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="replace")


def read_input(words: Sequence[str]) -> str:
    """Read the piped input, if there is any, and append the words. Raises ValueError if the input is not UTF-8."""
    with _explaining_wrong_text():
        piped = ""
        if sys.stdin is not None and not sys.stdin.isatty():
            text = "localchat: waiting for the end of the piped input; </dev/null stands for none"
            with delayed_notice(text, _PIPE_NOTICE_S):
                piped = sys.stdin.read()
        prompt = "\n\n".join(part for part in (piped.rstrip(), " ".join(words)) if part)
        prompt.encode()
    return prompt


def read_line(prompt: str) -> str:
    """Read a line from the terminal. Raises EOFError at the end, and ValueError if the line is not UTF-8."""
    with _explaining_wrong_text():
        line = input(prompt)
        line.encode()
    return line


@contextlib.contextmanager
def _explaining_wrong_text() -> Iterator[None]:
    """Raise ValueError with what to do for text that is not UTF-8.

    Depending on the locale, Python raises UnicodeError when it reads such text, or makes surrogates of the bytes. The
    block encodes its text, which raises UnicodeError for surrogates too.
    """
    try:
        yield
    except UnicodeError as error:
        raise ValueError(f"the text is not UTF-8. Convert it first, with iconv for example: {error}") from error


def report(text: str) -> None:
    """Write a line to stderr, if it is open."""
    write_error(f"{text}\n")


def write_error(text: str, before: str = "", after: str = "") -> None:
    """Write a text to stderr, if it is open, between escape sequences of this program."""
    if sys.stderr is not None:
        print(before + printable(text, sys.stderr) + after, end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def delayed_notice(text: str, after_s: float) -> Iterator[threading.Timer]:
    """Report this text if the block takes longer than these seconds; `cancel` of the timer prevents that."""
    timer = threading.Timer(after_s, report, [text])
    timer.daemon = True
    try:
        timer.start()
        yield timer
    finally:
        timer.cancel()


def printable(text: str, stream: TextIO) -> str:
    """The text for this stream: on a terminal, control characters are replaced by visible escapes."""
    return text.translate(_CONTROLS) if stream.isatty() else text
