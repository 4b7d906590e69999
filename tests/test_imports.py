"""The map of the package, read off its import lines: arrows point one way, and the public names are real."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import localchat

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
        "models",
        "serving/routes",
        "serving/service",
        "serving/thinking",
        "serving/watch",
        "serving/web",
    },
    "serving/routes": {
        "serving/answer",
        "api",
        "serving/endpoints",
        "engine",
        "serving/exchange",
        "serving/service",
        "serving/web",
    },
    "serving/endpoints": {
        "__init__",
        "api",
        "serving/completion",
        "engine",
        "serving/exchange",
        "serving/metrics",
        "serving/prompts",
        "serving/service",
        "serving/vectors",
        "serving/web",
        "serving/work",
    },
    "serving/completion": {"api", "serving/constraints", "engine", "serving/service"},
    "serving/vectors": {"api", "serving/completion", "engine", "serving/service"},
    "serving/prompts": {"api", "chat", "serving/service"},
    "serving/metrics": {"api", "engine"},
    "serving/web": {"serving/exchange", "serving/watch"},
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
    },
    "serving/thinking": {"api", "chat", "engine"},
    "serving/constraints": {"api", "chat", "engine"},
    "serving/answer": {"api", "chat", "engine"},
    "serving/watch": set(),
    "serving/__init__": set(),
    "api": set(),
    "chat": set(),
    "engine": set(),
    "models": set(),
}

# What only one place may import of the world outside: a file, or all files of a folder.
SOLE_IMPORTERS = {
    "http.server": "server.py",
    "llama_cpp": "engine/llama/library.py",
    "numpy": "engine/llama/",
    "jinja2": "chat/",
    "http.client": "client.py",
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


def test_import_of_the_client_loads_nothing_heavy():
    heavy = ("http.server", "http.client", "llama_cpp", "numpy", "jinja2", "ssl", "asyncio")
    program = f"import sys, localchat; print([name for name in {heavy!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert out.stdout.strip() == "[]"
