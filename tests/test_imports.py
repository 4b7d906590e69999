"""The imports of the package follow the tables below, and its public names exist."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import localchat
from localchat import vendor

from .raw_server import HELLO, always, with_length

PACKAGE = Path(localchat.__file__).parent

# The client files that can be copied, in the order of vendor.FILES, and the files that each may import.
CLIENT_FILES: dict[str, set[str]] = {
    "sse": set(),
    "errors": {"events"},  # Only for types.
    "events": set(),
    "http1": {"errors"},
    "network": {"errors", "http1"},
    "timeouts": {"errors"},
    "keywords": {"errors", "timeouts"},
    "payloads": {"errors", "events"},
    "model_list": {"errors"},
    "frames": {"errors", "payloads", "sse"},
    "think_tags": set(),
    "surrogates": set(),
    "tool_calls": {"errors", "events", "payloads", "surrogates"},
    "assembly": {"errors", "events", "payloads", "surrogates", "think_tags", "tool_calls"},
    "settings": {"errors", "http1", "keywords", "network", "payloads", "timeouts"},
    "retries": {"errors"},
    "failures": {"errors", "events", "model_list", "payloads", "retries", "settings"},
    "options": {"errors", "http1", "keywords", "payloads", "settings", "timeouts"},
    "call": {
        *("assembly", "errors", "events", "failures", "frames", "http1", "network", "retries", "settings", "sse"),
        "timeouts",
    },
    "sockets": {"http1", "network", "settings"},
    "blocking_call": {"call", "errors", "failures", "network", "settings", "sockets", "timeouts"},
    "client": {
        *("assembly", "blocking_call", "call", "errors", "events", "failures", "options", "payloads", "settings"),
        *("embeddings", "keywords", "model_list", "sockets", "timeouts", "conversation", "tools", "tool_run"),
    },
    "ask": {"client", "errors", "events"},
}

# The parts of the package (files or folders), and the other parts that each may import.
MAY_IMPORT = {
    "__init__": {
        *("aio", "client", "assembly", "conversation", "embeddings", "errors", "events", "model_list", "record", "sse"),
        *("timeouts", "tools", "tool_run"),
    },
    "__main__": {"ask", "client", "errors", "terminal"},
    "terminal": {
        *("__init__", "ask", "client", "conversation", "errors", "events", "keywords", "media", "tools", "tool_run"),
    },
    **CLIENT_FILES,
    "aio_sockets": {"http1", "network", "settings", "sockets", "timeouts"},
    "aio_call": CLIENT_FILES["blocking_call"] - {"sockets"} | {"aio_sockets"},
    "aio": CLIENT_FILES["client"] - {"sockets", "blocking_call"} | {"aio_call", "aio_sockets", "mapping"},
    "signatures": set(),
    "shapes": {"validator"},
    "schema": {"errors", "shapes", "signatures", "validator"},
    "structured": {"errors", "events", "options", "schema", "validator"},
    "validator": set(),
    "embeddings": {"errors", "events", "failures", "model_list", "options", "payloads", "settings"},
    "mapping": {"errors", "events", "keywords", "payloads"},
    "media": {"network", "payloads"},
    "tools": {"errors", "events", "schema", "shapes", "signatures"},
    "tool_run": {"errors", "events", "media", "options", "payloads", "tools"},
    "conversation": {"events", "payloads", "tools", "tool_run"},
    "convert": {"events", "media", "payloads", "shapes"},
    "record": {"errors"},
    "vendor": {"__init__"},
    "server": {"engine", "generation", "models", "protocol", "serving"},
    "serving": {"__init__", "child_processes", "engine", "generation", "models", "protocol"},
    "generation": {"dialects", "engine", "grammar", "models", "prompt", "protocol"},
    "prompt": {"dialects", "literals", "protocol"},
    "grammar": {"dialects"},
    "dialects": {"protocol"},
    "engine": {"child_processes", "grammar", "literals", "models", "protocol"},
    "literals": set(),
    "child_processes": set(),
    "protocol": set(),
    "models": set(),
}

# The modules outside the package that only one file or folder may import.
SOLE_IMPORTERS = {
    "http.server": "serving/http_server.py",
    "llama_cpp": "engine/llama/library.py",
    "numpy": "engine/llama/",
    "jinja2": "prompt/",
}

# Modules that a file uses if they are installed.
OPTIONAL = {"certifi"}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """The part of the package that a file belongs to."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def part_named(name: str) -> str:
    """The part of the package that a module belongs to."""
    return [*name.split(".")[1:], "__init__"][0]


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """The absolute names of all modules that a file imports, also inside functions."""
    return frozenset(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    package = ["localchat", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            # `from . import sse` imports a module, not a name of a module.
            yield from filter(is_module, names)
            if not all(map(is_module, names)):
                yield module


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_parts_import_only_what_the_table_allows():
    wrong = []
    for path in modules():
        own = part_of(path)
        own_names = {name for name in imported(path) if name.partition(".")[0] == "localchat" and is_module(name)}
        parts = {name: part_named(name) for name in own_names}
        wrong += [(path.name, name) for name, part in parts.items() if part != own and part not in MAY_IMPORT[own]]
    assert wrong == []


@pytest.mark.parametrize("library", SOLE_IMPORTERS)
def test_libraries_are_imported_in_one_place(library: str):
    importers = [
        str(path.relative_to(PACKAGE))
        for path in modules()
        if any(name == library or name.startswith(library + ".") for name in imported(path))
    ]
    assert importers
    assert all(importer.startswith(SOLE_IMPORTERS[library]) for importer in importers)


def test_files_to_copy_are_those_of_the_table():
    assert [f"{name}.py" for name in CLIENT_FILES] == list(vendor.FILES)


@pytest.mark.parametrize("name", vendor.FILES)
def test_client_files_import_the_standard_library_alone(name: str):
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    for node in ast.walk(tree):  # Types may come from typing_extensions, which type checkers know.
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    assert {name.partition(".")[0] for name in names} - OPTIONAL <= set(sys.stdlib_module_names)


def test_public_names_exist_and_are_listed_once():
    assert len(set(localchat.__all__)) == len(localchat.__all__)
    for name in localchat.__all__:
        assert getattr(localchat, name) is not None


def test_no_file_or_folder_has_the_name_of_a_public_function():
    """Importing the module would replace the function in the package."""
    assert {path.stem for path in PACKAGE.iterdir()} & set(localchat.__all__) == set()


def test_import_of_the_client_loads_nothing_heavy():
    heavy = ("http.server", "http.client", "llama_cpp", "numpy", "jinja2", "ssl", "asyncio")
    program = f"import sys, localchat; print([name for name in {heavy!r} if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "unneeded"), [("AsyncClient", "localchat.tools"), ("replay", "localchat.client"), ("Tool", "asyncio")]
)
def test_name_imports_only_its_module(name: str, unneeded: str):
    program = f"import sys, localchat; localchat.{name}; assert {unneeded!r} not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


@pytest.mark.parametrize("raw", [HELLO, with_length(b"", "400 Bad")], ids=["response", "error"])
def test_a_chat_over_http_loads_nothing_heavy(raw: bytes):
    """The client imports some modules only in the calls that need them."""
    heavy = ("http.client", "email.utils", "ssl", "asyncio", "dataclasses", "inspect", "urllib.request", "logging")
    program = (
        "import contextlib, sys, localchat\n"
        "with contextlib.suppress(localchat.StatusError):\n"
        "    localchat.Client(sys.argv[1], model='m', max_retries=0).chat('hi')\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
    )
    with always(raw) as server:
        # Without site-packages, since installed packages may import more modules at the start.
        command = [sys.executable, "-S", "-c", program, server.url]
        out = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30, cwd=PACKAGE.parent)
    assert out.stdout.strip() == "[]"
