"""`python -m localchat.extras.vendor FILE.py` or `FOLDER`: copy the client into a project, as one file or as several.

For one file, the files of the client are joined in the order of their imports. Imports among them are removed; their
imports of the standard library come first. The file runs under `python -I -S`. As a program it sends a prompt to the
server at OPENAI_BASE_URL: `python FILE.py "Why is the sky blue?"`. A folder gets the files of the client and of the
named features, with the licence in each.
"""

from __future__ import annotations

import argparse
import ast
import errno
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from .. import __version__

FILES = (
    "sse.py",
    "errors.py",
    "events.py",
    "transport/http1.py",
    "transport/addresses.py",
    "transport/timeouts.py",
    "transport/keywords.py",
    "reply/payloads.py",
    "reply/models.py",
    "reply/frames.py",
    "reply/think_tags.py",
    "reply/surrogates.py",
    "reply/tool_calls.py",
    "reply/assembly.py",
    "transport/options.py",
    "transport/retries.py",
    "transport/pool.py",
    "transport/call.py",
    "transport/streams.py",
    "transport/sockets.py",
    "client.py",
    "terminal/ask.py",
)

# Methods of Client that need other files, and the classes of their options. The one file lacks both.
_OMITTED_METHODS = ("map", "run", "run_stream", "conversation", "embed", "_embed", "_embedding_model", "_find_model")
_OMITTED_OPTIONS = ("MapKeywords", "RunKeywords", "EmbeddingKeywords")

# The file of FILES that is only for the program. A folder does not get it.
_PROGRAM = "terminal/ask.py"

_SCHEMA_FILES = ("schema/schema.py", "schema/shapes.py", "schema/signatures.py", "schema/validator.py")
_TOOL_FILES = ("agent/tools.py", "agent/tool_run.py", *_SCHEMA_FILES, "extras/media.py")

# The files of each feature, which only a folder can have.
FEATURES = {
    "asyncio": ("transport/aio_sockets.py", "aio.py"),
    "tools": _TOOL_FILES,
    "structured": ("schema/structured.py", *_SCHEMA_FILES),
    "conversations": (*_TOOL_FILES, "agent/conversation.py"),
    "embeddings": ("extras/embeddings.py", "extras/mapping.py"),
    "media": ("extras/media.py",),
    "record": ("extras/record.py",),
}

_PACKAGE = Path(__file__).resolve().parents[1]

# The first line of every file that this program writes. Only files that begin with it are overwritten.
MARK = "# Written by `python -m localchat.extras.vendor`, which overwrites it without asking: do not edit."

_HEAD = '''{mark}
"""The chat client of localchat {version} in one file.

{license}
"""

from __future__ import annotations

{imports}

__version__ = "{version}"
'''

_SECTION = """

# {name}: {about}


{body}
"""

_TAIL = """

if __name__ == "__main__":
    sys.exit(main())
"""

# The licence requires its text in every copy. It is a constant, since a wheel need not have the file LICENSE.
LICENSE = """\
MIT License

Copyright (c) 2026 The localchat authors

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE."""


def joined() -> str:
    """The source of the one file.

    Raises:
        ValueError: Two files define the same name differently.
    """
    sources = {name: (_PACKAGE / name).read_text(encoding="utf-8") for name in FILES}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    _check_names(trees)
    imports = "\n".join(_imports(trees.values()))
    parts = [_HEAD.format(mark=MARK, version=__version__, license=LICENSE, imports=imports)]
    for name, tree in trees.items():
        title = (ast.get_docstring(tree) or "").splitlines()[0]
        parts.append(_SECTION.format(name=name, about=title, body=_body(sources[name], tree)))
    return "".join(parts) + _TAIL


def _imports(trees: Iterable[ast.Module]) -> list[str]:
    """The import lines for the standard library, each name once. Imports within functions stay where they are."""
    modules: set[str] = set()
    names: dict[str, set[str]] = {}
    for tree in trees:
        for node in tree.body:
            if isinstance(node, ast.Import):
                modules.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module != "__future__":
                names.setdefault(node.module or "", set()).update(alias.name for alias in node.names)
    lines = [f"import {name}" for name in sorted(modules)]
    return lines + [f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)]


def _body(source: str, tree: ast.Module) -> str:
    """The code of a file without its docstring, imports, overloads, and the omitted methods and options."""
    lines = source.splitlines()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "overload" in map(ast.unparse, node.decorator_list):
            _blank(lines, node)
        elif isinstance(node, ast.ClassDef) and node.name in ("Client", "BaseClient"):
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in _OMITTED_METHODS:
                    _blank(lines, method)
    for node in tree.body:
        is_docstring = node is tree.body[0] and ast.get_docstring(tree) is not None
        is_omitted = isinstance(node, ast.ClassDef) and node.name in _OMITTED_OPTIONS
        if is_docstring or is_omitted or isinstance(node, (ast.Import, ast.ImportFrom)) or _is_for_types(node):
            _blank(lines, node)
    # No string constant of the files has three line ends in a row, so this changes blank lines between statements only.
    return re.sub("\n{4,}", "\n\n\n", "\n".join(lines).strip("\n"))


def _blank(lines: list[str], node: ast.stmt) -> None:
    """Make the lines of a statement and its decorators empty."""
    decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
    first = decorators[0].lineno if decorators else node.lineno
    end = node.end_lineno or node.lineno
    lines[first - 1 : end] = [""] * (end - first + 1)


def _is_for_types(node: ast.stmt) -> bool:
    """Whether this is `if TYPE_CHECKING`. Only annotations use its names, and they are not evaluated."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse


def _check_names(trees: dict[str, ast.Module]) -> None:
    """Raise ValueError if two files define a name differently: in one file, the second would replace the first."""
    seen: dict[str, tuple[str, str]] = {}
    for file, tree in trees.items():
        for name, code in _definitions(tree).items():
            if name in seen and seen[name][1] != code:
                raise ValueError(f"{name} is defined in {seen[name][0]} and in {file}")
            seen[name] = file, code


def _definitions(tree: ast.Module) -> dict[str, str]:
    """The top-level names of a file, each with its code. Overloads are joined with their function."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = found.get(node.name, "") + ast.dump(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update((target.id, ast.dump(node)) for target in targets if isinstance(target, ast.Name))
    return found


def write_folder(folder: Path, features: Iterable[str]) -> None:
    """Write the files of the client and of these features into a folder, each with the licence.

    Raises:
        FileExistsError: A file exists that this program did not write. The files before it have been written.
        OSError: A file cannot be written.
    """
    names = [name for name in FILES if name != _PROGRAM]
    names += [name for feature in features for name in FEATURES[feature]]
    head = "\n".join([MARK, *(f"# {line}".rstrip() for line in LICENSE.splitlines())])
    for room in sorted({Path(name).parent for name in names}):
        (folder / room).mkdir(parents=True, exist_ok=True)
        write(folder / room / "__init__.py", head + "\n")
    for name in dict.fromkeys(names):
        write(folder / name, f"{head}\n{(_PACKAGE / name).read_text(encoding='utf-8')}")


def write(path: Path, source: str) -> None:
    """Write a file, unless it exists and this program did not write it.

    Raises:
        FileExistsError: The file exists, and this program did not write it.
        OSError: The file cannot be written.
    """
    if path.exists():
        with path.open("rb") as existing:
            first_line = existing.readline(len(MARK) + 2)
        if first_line.rstrip(b"\r\n") != MARK.encode():
            reason = "it exists and was not written by this program. Give another name, or remove the file"
            raise FileExistsError(errno.EEXIST, reason, str(path))
    # A failed write must not leave a part of the file, which might lack the first line.
    target = Path(os.path.realpath(path))  # A symbolic link stays one.
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_text(source, encoding="utf-8")
        if target.exists():
            shutil.copymode(target, part)
        part.replace(target)
    except OSError as error:
        if error.filename is not None:
            error.filename = str(path)  # Not the name of the part.
        raise
    finally:
        part.unlink(missing_ok=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m localchat.extras.vendor",
        description="Write the client as one file of standard-library Python, or as several in a folder. A file that "
        "this program did not write is never overwritten.",
    )
    parser.add_argument("path", type=Path, help="the file to write, chat_client.py for example, or the folder")
    parser.add_argument(
        "--with",
        dest="features",
        choices=FEATURES,
        action="append",
        default=[],
        help="a feature to add to the folder; may be repeated",
    )
    options = parser.parse_args(argv)
    path: Path = options.path
    if options.features and path.suffix == ".py":
        parser.error(f"--with adds files to a folder, and {path} is one file: name a folder")
    try:
        if path.suffix == ".py":
            write(path, joined())
        else:
            write_folder(path, options.features)
    except OSError as error:
        parser.error(f"cannot write {error.filename or path}: {error.strerror or error}")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
