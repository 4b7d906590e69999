"""The map of the package, read off its import lines: arrows point one way, and the public names are real."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import localchat

from .raw_server import HELLO, always, with_length

PACKAGE = Path(localchat.__file__).parent

# What each part may import of the package, itself aside. A folder is one part, but for `serving`.
MAY_IMPORT = {
    "__init__": {"aio", "client", "conversation", "events", "record", "sse", "tools", "wire"},
    "__main__": {"client", "events", "__init__"},
    "sse": set(),
    "events": set(),
    "wire": {"events"},
    "client": {"sse", "events", "wire", "record", "conversation", "tools"},
    "schema": {"events", "validator"},
    "validator": set(),
    "media": {"wire"},
    "tools": {"events", "media", "schema", "wire"},
    "conversation": {"events", "tools", "wire"},
    "convert": {"events", "media", "schema", "wire"},
    "aio": {"client", "events", "wire", "conversation", "tools"},
    "record": {"events"},
    "vendor": {"__init__"},
    "server": {
        "__init__",
        "api",
        "engine",
        "serving/exchange",
        "serving/incoming",
        "models",
        "serving/routes",
        "serving/service",
        "serving/thinking",
        "serving/watch",
        "serving/web",
    },
    "serving/routes": {"api", "serving/endpoints", "serving/exchange", "serving/service", "serving/web"},
    "serving/endpoints": {
        "__init__",
        "serving/answer",
        "api",
        "serving/completion",
        "engine",
        "serving/exchange",
        "serving/metrics",
        "serving/service",
        "serving/stream",
        "serving/vectors",
    },
    "serving/completion": {"serving/answer", "api", "serving/constraints", "engine", "serving/service"},
    "serving/vectors": {"api", "serving/completion", "engine", "serving/service"},
    "serving/metrics": {"api", "engine"},
    "serving/stream": {"api", "engine", "serving/exchange"},
    "serving/web": {"api"},
    "serving/work": set(),
    "serving/exchange": {"api", "sse", "serving/watch"},
    "serving/service": {
        "serving/answer",
        "api",
        "chat",
        "serving/constraints",
        "engine",
        "models",
        "serving/thinking",
        "serving/work",
    },
    "serving/thinking": {"api", "chat", "engine"},
    "serving/constraints": {"api", "chat", "engine"},
    "serving/answer": {"api", "chat", "engine"},
    "serving/incoming": set(),
    "serving/watch": set(),
    "serving/__init__": set(),
    "layouts": set(),
    "api": set(),
    "chat": {"layouts"},
    "engine": {"layouts"},
    "models": set(),
}

# What only one place may import of the world outside: a file, or all files of a folder.
SOLE_IMPORTERS = {
    "http.server": "server.py",
    "llama_cpp": "engine/llama/library.py",
    "numpy": "engine/llama/",
    "jinja2": "chat/",
}

# What a file uses where it happens to be there.
OPTIONAL = {"certifi"}

CLIENT_FILES = ("sse.py", "events.py", "wire.py", "client.py")


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The row of the table that a file belongs to: each file of the top and of `serving`, else its folder."""
    first, *rest = path.relative_to(PACKAGE).with_suffix("").parts
    return f"serving/{rest[0]}" if first == "serving" else first


def part_named(name: str) -> str:
    """The same for the name of a module."""
    first, second, *_ = [*name.split(".")[1:], "__init__", "__init__"]
    return f"serving/{second}" if first == "serving" else first


def imported(path: Path) -> Iterator[str]:
    """The absolute names of all modules that a file imports, anywhere in it."""
    package = ["localchat", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            # `from . import sse` names a module, not a thing inside one.
            yield from filter(is_module, names)
            if not all(map(is_module, names)):
                yield module


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_down_the_table(path: Path):
    own = part_of(path)
    for name in imported(path):
        if name.partition(".")[0] != "localchat" or not is_module(name):
            continue
        part = part_named(name)
        assert part == own or part in MAY_IMPORT[own], f"{path.name} must not import {name}"


@pytest.mark.parametrize("library", SOLE_IMPORTERS)
def test_libraries_are_imported_in_one_place(library: str):
    importers = [
        str(path.relative_to(PACKAGE))
        for path in modules()
        if any(name == library or name.startswith(library + ".") for name in imported(path))
    ]
    assert importers
    assert all(importer.startswith(SOLE_IMPORTERS[library]) for importer in importers)


@pytest.mark.parametrize("name", CLIENT_FILES)
def test_client_files_import_the_standard_library_alone(name: str):
    outside = {imported_name.partition(".")[0] for imported_name in imported(PACKAGE / name)}
    assert outside - {"localchat"} - OPTIONAL <= set(sys.stdlib_module_names)


def test_public_names_exist_and_are_listed_once():
    assert len(set(localchat.__all__)) == len(localchat.__all__)
    for name in localchat.__all__:
        assert getattr(localchat, name) is not None


@pytest.mark.parametrize("first", ["from localchat import chat", "import localchat.chat.formats"])
def test_folder_of_the_server_does_not_take_the_name_of_the_function(first: str):
    """In a program that has both the client and the server."""
    code = (
        f"{first}; import localchat.chat.formats, localchat.server; from localchat import chat; print(chat.__module__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("localchat.client\n", "")


def test_import_of_the_client_loads_nothing_heavy():
    heavy = ("http.server", "http.client", "llama_cpp", "numpy", "jinja2", "ssl", "asyncio")
    program = f"import sys, localchat; print([name for name in {heavy!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "unneeded"), [("AsyncClient", "localchat.tools"), ("replay", "localchat.client"), ("Tool", "asyncio")]
)
def test_a_name_loads_no_more_than_its_home(name: str, unneeded: str):
    program = f"import sys, localchat; localchat.{name}; assert {unneeded!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


@pytest.mark.parametrize("raw", [HELLO, with_length(b"", "400 Bad")], ids=["answer", "error"])
def test_a_chat_over_http_loads_nothing_heavy(raw: bytes):
    """What the client imports late it imports only where it is needed."""
    heavy = ("http.client", "email.utils", "ssl", "asyncio", "dataclasses", "inspect", "urllib.request", "logging")
    program = (
        "import contextlib, sys, localchat\n"
        "with contextlib.suppress(localchat.StatusError):\n"
        "    localchat.Client(sys.argv[1], model='m', max_retries=0).chat('hi')\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
    )
    with always(raw) as server:
        # Without site: what is installed beside Python may load more.
        command = [sys.executable, "-S", "-c", program, server.url]
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, cwd=PACKAGE.parent)
    assert out.stdout.strip() == "[]"
