"""`python -m tools.vendor FILE.py` or `FOLDER`: copy the client into a project, as one file or as several.

For one file, the files that `__main__.py` imports are joined in the order of their imports. Imports among them are
removed; their imports of the standard library come first. An import of a file that is not copied becomes an error that
names it. The file runs under `python -I -S`. As a program it is `python -m localchat`, without the chat and what needs
other files: `python FILE.py "Why is the sky blue?"`. A folder gets all files of the client, with the licence in each.
"""

from __future__ import annotations

import argparse
import ast
import errno
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from localchat import __version__

# The program of the one file; the interface of a folder, which has all files that it imports, also within functions.
_PROGRAM = "__main__.py"
_INTERFACE = "__init__.py"
_MCP_INTERFACE = "mcp/__init__.py"  # The interface does not import it.

_PACKAGE = Path(__file__).resolve().parents[1] / "localchat"

# The first line of every file that this program writes. Only files that begin with it are overwritten.
MARK = "# Written by `python -m tools.vendor`, which overwrites it without asking: do not edit."

_HEAD = '''{mark}
"""The chat client of localchat {version} in one file.

{license}
"""

from __future__ import annotations

{imports}

if TYPE_CHECKING:
{types}

__version__ = "{version}"


def not_in_this_file(name: str) -> Any:
    way = "install localchat, or copy it as a folder: python -m tools.vendor FOLDER"
    raise ImportError(f"this needs localchat's {{name}}, which is not in this file: {{way}}")
'''

_SECTION = """

# {name}: {about}


{body}
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


def files(start: str, within_functions: bool = False) -> list[str]:
    """A file of the package and the files that it imports, each after those that it imports itself."""
    seen: set[str] = set()
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name not in seen:
            seen.add(name)
            tree = ast.parse(_source(name))
            for node in ast.walk(tree) if within_functions else tree.body:
                for imported in _imported_files(name, node):
                    visit(imported)
            ordered.append(name)

    visit(start)
    return ordered


def _imported_files(name: str, node: ast.AST) -> Iterator[str]:
    """The files of the package that a statement of the file `name` imports; none if it is another statement."""
    if isinstance(node, ast.ImportFrom) and node.level:
        module = (_PACKAGE / name).parents[node.level - 1].joinpath(*(node.module or "").split("."))
        for path in (module.with_suffix(".py"), *(module / f"{alias.name}.py" for alias in node.names)):
            if path.is_file():
                yield path.relative_to(_PACKAGE).as_posix()


def _source(name: str) -> str:
    return (_PACKAGE / name).read_text(encoding="utf-8")


def one_file() -> str:
    """The source of the one file. A test checks that no two files define the same name."""
    sources = {name: _source(name) for name in files(_PROGRAM)}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    imports = "\n".join(_imports(node for tree in trees.values() for node in tree.body))
    blocks = [(name, part) for name, tree in trees.items() for part in tree.body if _is_for_types(part)]
    for_types = [(name, node) for name, part in blocks if isinstance(part, ast.If) for node in part.body]
    absent = {alias for name, node in for_types for alias in _names_of_absent(name, node, sources)}
    types = [*_imports(node for _, node in for_types), f"{' = '.join(sorted(absent))} = Any"]
    text = "\n".join(f"    {line}" for line in types)
    parts = [_HEAD.format(mark=MARK, version=__version__, license=LICENSE, imports=imports, types=text)]
    for name, tree in trees.items():
        title = (ast.get_docstring(tree) or "").splitlines()[0]
        parts.append(_SECTION.format(name=name, about=title, body=_body(name, sources, tree)))
    return "".join(parts)


def _imports(nodes: Iterable[ast.stmt]) -> list[str]:
    """The import lines for the standard library, each name once. Imports within functions stay where they are."""
    modules: set[str] = set()
    names: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            modules.update(map(ast.unparse, node.names))
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module != "__future__":
            used = [ast.unparse(alias) for alias in node.names if alias.name != "overload"]
            names.setdefault(node.module or "", set()).update(used)
    lines = [f"import {name}" for name in sorted(modules)]
    return lines + [f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)]


def _names_of_absent(name: str, node: ast.AST, sources: Mapping[str, str]) -> list[str]:
    """The names that a statement of the file `name` imports from a file that is not copied."""
    missing = set(_imported_files(name, node)) - sources.keys()
    return [alias.asname or alias.name for alias in node.names] if missing and isinstance(node, ast.ImportFrom) else []


def _body(name: str, sources: Mapping[str, str], tree: ast.Module) -> str:
    """The code of a file without its docstring, imports and overloads."""
    unneeded: list[ast.stmt] = [
        node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_for_types(node)
    ]
    unneeded += tree.body[:1] if ast.get_docstring(tree) is not None else []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    unneeded += [node for node in functions if "overload" in map(ast.unparse, node.decorator_list)]
    lines = sources[name].splitlines()
    for one in (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node not in tree.body):
        for alias in _names_of_absent(name, one, sources):
            path = next(path for path in _imported_files(name, one) if path not in sources)
            lines[one.lineno - 1] = f'{" " * one.col_offset}{alias} = not_in_this_file("{path}")'
    for node in unneeded:
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        first, end = min([node.lineno, *(decorator.lineno for decorator in decorators)]), node.end_lineno or node.lineno
        lines[first - 1 : end] = [""] * (end - first + 1)
    # No string constant of the files has three line ends in a row, so this changes blank lines between statements only.
    text = re.sub(r'(?<=not_in_this_file\(")(.*)\n\n', r"\1\n", "\n".join(lines).strip("\n"))
    return re.sub("\n{4,}", "\n\n\n", re.sub("\n{3,}(?= )", "\n\n", text))


def _is_for_types(node: ast.stmt) -> bool:
    """Whether this is `if TYPE_CHECKING`. Only annotations use its names, and they are not evaluated."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not node.orelse


def write_folder(folder: Path, has_mcp: bool = False) -> None:
    """Write the files of the client into a folder. Raises FileExistsError for a file that is not of this program."""
    starts = [_INTERFACE, *([_MCP_INTERFACE] if has_mcp else [])]
    names = dict.fromkeys(name for start in starts for name in files(start, within_functions=True))
    head = "\n".join([MARK, *(f"# {line}".rstrip() for line in LICENSE.splitlines())])
    for room in sorted({Path(name).parent for name in names}):
        (folder / room).mkdir(parents=True, exist_ok=True)
        write(folder / room / "__init__.py", head + "\n")
    for name in names:  # Also the interface, in place of the empty file.
        write(folder / name, f"{head}\n{_source(name)}")


def write(path: Path, source: str) -> None:
    """Write a file, unless it exists and this program did not write it. Raises FileExistsError then."""
    if path.exists():
        with path.open("rb") as existing:
            first_line = existing.readline(len(MARK) + 2)
        if first_line.rstrip(b"\r\n") != MARK.encode():
            reason = "it exists and was not written by this program. Give another name, or remove the file"
            raise FileExistsError(errno.EEXIST, reason, str(path))
    path.write_text(source, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.vendor",
        description="Write the client as one file of standard-library Python, or as several in a folder. A file that "
        "this program did not write is never overwritten.",
    )
    parser.add_argument("path", type=Path, help="the file to write, chat_client.py for example, or the folder")
    parser.add_argument("--mcp", action="store_true", help="write localchat.mcp into the folder too")
    arguments = parser.parse_args(argv)
    path: Path = arguments.path
    if arguments.mcp and path.suffix == ".py":
        parser.error("--mcp needs a folder: one file cannot have it")
    try:
        if path.suffix == ".py":
            write(path, one_file())
        else:
            write_folder(path, arguments.mcp)
    except OSError as error:
        parser.error(f"cannot write {error.filename or path}: {error.strerror or error}")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
