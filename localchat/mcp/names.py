"""The names of servers, in errors and in the log, and the names by which models call their tools. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

# Programs that run other programs: the name of a server has also the name of the other one.
_LAUNCHERS = {"npx", "uvx", "bunx", "pipx", "node", "deno", "bun", "python", "python3", "uv", "docker", "podman"}
_SUBCOMMANDS = {"run", "exec", "x", "tool"}
# Their options whose value is the next argument, and those without a value. After any other option, the next argument
# may be its value, such as a key.
_OPTIONS_WITH_VALUES = {
    *("--directory", "--project", "--from", "--with", "--with-editable", "--python", "-p", "--package", "--index-url"),
    *("-e", "--env", "--env-file", "-v", "--volume", "--mount", "--name", "--network", "--net", "-w", "--workdir"),
    *("--user", "--entrypoint", "--platform", "--label"),
}
_FLAGS = {
    *("-y", "--yes", "-q", "--quiet", "--no-install", "--offline", "--isolated", "-m", "--"),
    *("-i", "-t", "-it", "-ti", "--interactive", "--tty", "--rm", "--init"),
    *("-A", "--allow-all", "--allow-net", "--allow-read", "--allow-write", "--allow-env", "--allow-run"),
}
_PACKAGE = re.compile(r"[\w.@:/\\+-]+")

# What a model may call a tool; see agent.tools.
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")
_MAX_NAME_CHARS = 64


def free_name(name: str, taken: Collection[str]) -> str:
    """A name that a model can call a tool by: with other characters replaced, and a number if it is taken."""
    text = _NOT_IN_NAMES.sub("_", name)[:_MAX_NAME_CHARS] or "tool"
    free, number = text, 1
    while free in taken:
        number += 1
        free = f"{text[: _MAX_NAME_CHARS - len(str(number)) - 1]}_{number}"
    return free


def is_url(text: str) -> bool:
    """Whether a text is the URL of a server, and not a program."""
    return text.lower().startswith(("http://", "https://"))


def url_name(url: str) -> str:
    """The host of a URL. Its path and query may have keys."""
    return url.partition("://")[2].partition("/")[0].partition("?")[0].rpartition("@")[2]


def command_name(words: Sequence[str]) -> str:
    """The name of a program; after that of a launcher, the last part of the path of what it runs."""
    name = Path(words[0]).name
    package = _package_of(words[1:]) if name.partition(".")[0].lower() in _LAUNCHERS else ""
    return f"{name} {Path(package).name}" if _PACKAGE.fullmatch(package) else name


def _package_of(arguments: Sequence[str]) -> str:
    """The first argument of a launcher that is neither an option nor its value; "" if that is not known."""
    words = iter(arguments)
    for word in words:
        if word in _OPTIONS_WITH_VALUES:
            next(words, None)
        elif not word.startswith("-"):
            if word not in _SUBCOMMANDS:
                return word
        elif word not in _FLAGS and "=" not in word:
            return ""
    return ""
