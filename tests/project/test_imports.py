"""The imports of the package follow the tables below, and its public names exist."""

import ast
import functools
import sys
from pathlib import Path

import pytest

import localchat
from tests.support.documents import run
from tests.support.raw_responses import HELLO, with_length
from tests.support.raw_server import always
from tools import vendor

PACKAGE = Path(localchat.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# The rooms of the package, which are the folders below and, for the root, its modules; and what each may import. A room
# of serving/ may import those that a request reaches later, and core/.
# Only serving/http/ imports serving/api/, which knows the formats on the wire.
SERVING = ["serving/core", "serving/schema", "serving/engine", "serving/models"]
CHAT = ["serving/chat", "serving/chat/runs", "serving/chat/constraints", "serving/chat/prompt", "serving/chat/dialects"]
MAY_IMPORT = {
    "": {"transport", "request", "reply", "agent", "terminal", "schema"},
    "request": {"", "transport", "reply", "schema"},
    "transport": {"", "reply"},
    "reply": {""},
    "schema": {""},
    "agent": {"", "transport", "request", "reply", "schema"},
    "terminal": {"", "request", "reply", "agent", "mcp"},
    "mcp": {"", "transport", "request", "reply", "schema", "agent"},
    "serving/core": set(),
    "serving/http": {"", "serving/api", *SERVING, *CHAT, "serving/loading"},
    "serving/loading": {*SERVING, "serving/chat"},
    "serving/schema": {"serving/core"},
    "serving/api": {"serving/core", "serving/schema"},
    "serving/chat": {*SERVING, "serving/chat/prompt"},
    "serving/chat/runs": {*SERVING, *CHAT},
    "serving/chat/constraints": {*SERVING, "serving/chat/prompt", "serving/chat/dialects"},
    "serving/chat/prompt": {"serving/core", "serving/chat/dialects"},
    "serving/chat/dialects": {"serving/core", "serving/schema"},
    "serving/engine": {"serving/core", "serving/models"},
    "serving/models": {"serving/core"},
}

# The modules outside the package that only some files or folders may import.
SOLE_IMPORTERS: dict[str, tuple[str, ...]] = {
    "http.server": ("serving/http/http_server.py", "testing.py"),
    "llama_cpp": ("serving/engine/llama/library.py",),
    "numpy": ("serving/engine/llama/", "serving/engine/media/decoding.py"),
    "PIL": ("serving/engine/media/decoding.py",),
    "soundfile": ("serving/engine/media/decoding.py",),
    "jinja2": ("serving/chat/prompt/",),
}


def room_of(parts: tuple[str, ...]) -> str:
    """The room that a module of the package belongs to, by the parts of its name."""
    if parts[:1] == ("serving",):
        return "/".join(parts[:3] if PACKAGE.joinpath(*parts[:3]).is_dir() and parts[1] == "chat" else parts[:2])
    return parts[0] if len(parts) > 1 or ((PACKAGE / "/".join(parts)).is_dir() and parts) else ""


@functools.cache
def imported(path: Path) -> set[str]:
    """The absolute names of all modules that a file imports, also inside functions."""
    package = ["localchat", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names = {f"{module}.{alias.name}" for alias in node.names}
            # `from . import sse` imports a module, not a name of a module.
            modules = set(filter(is_module, names))
            found |= modules if modules == names else {*modules, module}
    return found


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def test_rooms_import_only_what_the_table_allows():
    wrong = []
    for path in MODULES:
        own = room_of(path.relative_to(PACKAGE).with_suffix("").parts)
        if path.name in ("server.py", "worker.py") or own == "serving/__init__":
            continue
        for name in sorted(imported(path)):
            if name.partition(".")[0] != "localchat" or not is_module(name):
                continue
            room = room_of(tuple(name.split(".")[1:]))
            if room != own and room not in MAY_IMPORT[own]:
                wrong.append((str(path.relative_to(PACKAGE)), name))
            # The server imports no module of the client, and of the root only the version.
            if own.startswith("serving") and not room.startswith("serving") and name != "localchat":
                wrong.append((str(path.relative_to(PACKAGE)), name))
    assert wrong == []


@pytest.mark.parametrize("library", SOLE_IMPORTERS)
def test_libraries_are_imported_in_few_places(library: str):
    importers = [path for path in MODULES if any(f"{name}.".startswith(f"{library}.") for name in imported(path))]
    assert importers
    assert all(str(path.relative_to(PACKAGE)).startswith(SOLE_IMPORTERS[library]) for path in importers)


@pytest.mark.parametrize("name", sorted({*vendor.files("__main__.py"), *vendor.files("mcp/__init__.py", True)}))
def test_client_files_import_the_standard_library_alone(name: str):
    tree = ast.parse((PACKAGE / name).read_text(encoding="utf-8"))
    for node in ast.walk(tree):  # Types may come from typing_extensions, which type checkers know.
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = [ast.Pass()]
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level]
    newer = {"annotationlib"}  # Of Python 3.14.
    assert {name.partition(".")[0] for name in names} <= {*sys.stdlib_module_names, *newer}


def test_public_names_exist_and_are_listed_once():
    assert len(set(localchat.__all__)) == len(localchat.__all__)
    for name in localchat.__all__:
        assert getattr(localchat, name) is not None


def test_no_file_or_folder_has_the_name_of_a_public_function():
    """Importing the module would replace the function in the package."""
    assert {path.stem for path in PACKAGE.iterdir()} & set(localchat.__all__) == set()


@pytest.mark.parametrize(("name", "unneeded"), [("AsyncClient", "localchat.agent.tools"), ("Tool", "asyncio")])
def test_name_imports_only_its_module(name: str, unneeded: str):
    program = f"import sys, localchat; localchat.{name}; assert {unneeded!r} not in sys.modules"
    assert run([sys.executable, "-c", program]).returncode == 0


@pytest.mark.parametrize("raw", [HELLO, with_length(b"", "400 Bad")], ids=["response", "error"])
def test_a_chat_over_http_loads_nothing_heavy(raw: bytes):
    """The client imports some modules only in the calls that need them."""
    heavy = ["http.client", "email.utils", "ssl", "asyncio", "urllib.request", "logging"]
    heavy += ["http.server", "llama_cpp", "numpy", "jinja2", "PIL", "soundfile"]
    program = (
        "import contextlib, sys, localchat\n"
        "with contextlib.suppress(localchat.StatusError):\n"
        "    localchat.Client(sys.argv[1], model='m', max_retries=0).chat('hi')\n"
        f"print([name for name in {heavy!r} if name in sys.modules])\n"
    )
    with always(raw) as server:
        # Without site-packages, since installed packages may import more modules at the start.
        assert run([sys.executable, "-S", "-c", program, server.url]).stdout == "[]\n"
