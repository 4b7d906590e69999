"""The names of servers, in errors and in the log, and the names by which models call their tools. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

# Programs that run other programs: the name of a server has also the name of the other one.
_LAUNCHERS = {"npx", "uvx", "bunx", "pipx", "node", "deno", "bun", "python", "python3", "uv", "docker", "podman"}
# Their options whose value is the next argument, and no program.
_OPTIONS_WITH_VALUES = {
    *("--directory", "--project", "--from", "--with", "--with-editable", "--python", "-p", "--package", "--index-url"),
    *("-e", "--env", "--env-file", "-v", "--volume", "--mount", "--name", "--network", "--net", "-w", "--workdir"),
    *("-u", "--user", "--entrypoint", "--platform"),
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
    """The name of a program; after that of a launcher, the last part of the first argument that is no option."""
    name = Path(words[0]).name
    others = [
        word
        for before, word in zip(words, words[1:])
        if not word.startswith("-") and word not in ("run", "exec", "x", "tool") and before not in _OPTIONS_WITH_VALUES
    ]
    is_launcher = name.partition(".")[0].lower() in _LAUNCHERS
    return f"{name} {Path(others[0]).name}" if is_launcher and others and _PACKAGE.fullmatch(others[0]) else name
