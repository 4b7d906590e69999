"""`python -m localchat.vendor FILE.py`: the client as one file, for projects that take in no packages.

The files of the client are joined in the order of their imports: what they import of each other is left out, what
they import of the standard library is listed once. The file runs under `python -I -S`, and as a program
it asks the server that the environment names: `python FILE.py "Why is the sky blue?"`.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

FILES = (
    "sse.py",
    "errors.py",
    "events.py",
    "http1.py",
    "network.py",
    "timeouts.py",
    "payloads.py",
    "frames.py",
    "think_tags.py",
    "tool_calls.py",
    "assembly.py",
    "settings.py",
    "failures.py",
    "options.py",
    "call.py",
    "sockets.py",
    "blocking_call.py",
    "client.py",
)

_HEAD = '''"""The chat client of localchat {version} in one file, made by `python -m localchat.vendor`.

{about}"""

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
    import sys

    print(chat(" ".join(sys.argv[1:])))
"""


def joined(version: str) -> str:
    """The source of the one file.

    Raises:
        ValueError: Two files define the same name differently.
    """
    folder = Path(__file__).parent
    sources = {name: (folder / name).read_text(encoding="utf-8") for name in FILES}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    _check_names(trees)
    about = "\n".join(_license_notice(folder))
    parts = [_HEAD.format(version=version, about=about, imports="\n".join(_imports(trees.values())))]
    for name, tree in trees.items():
        title = (ast.get_docstring(tree) or "").splitlines()[0]
        parts.append(_SECTION.format(name=name, about=title, body=_body(sources[name], tree)))
    return "".join(parts) + _TAIL


def _license_notice(folder: Path) -> list[str]:
    """The licence has to go with every copy; an installed package keeps it with its metadata.

    Beside that, a LICENSE may be another package's.
    """
    home = folder.parent
    for path in (*home.glob("localchat-*.dist-info/licenses/LICENSE"), home / "LICENSE"):
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if "The localchat authors" in text:
            return text.splitlines()
    return ["MIT licensed."]


def _imports(trees: Iterable[ast.Module]) -> list[str]:
    """What the files import of the standard library at their tops, each name once."""
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
    """A file without its docstring and its imports; comments stay where they are."""
    lines = source.splitlines()
    for node in tree.body:
        docstring = node is tree.body[0] and ast.get_docstring(tree) is not None
        if not docstring and not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            lines[number] = ""
    return "\n".join(lines).strip("\n")


def _check_names(trees: dict[str, ast.Module]) -> None:
    """In one file a second definition would replace the first."""
    seen: dict[str, tuple[str, str]] = {}
    for file, tree in trees.items():
        for name, code in _definitions(tree):
            if name in seen and seen[name][1] != code:
                raise ValueError(f"{name} is defined in {seen[name][0]} and in {file}")
            seen[name] = file, code


def _definitions(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The names that a file defines at its top, each with its code; overloads come once."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found[node.name] = found.get(node.name, "") + ast.dump(node)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update((target.id, ast.dump(node)) for target in targets if isinstance(target, ast.Name))
    yield from found.items()


def main(argv: Sequence[str] | None = None) -> int:
    """Write the file."""
    parser = argparse.ArgumentParser(
        prog="python -m localchat.vendor", description="Write the client as one file of standard-library Python."
    )
    parser.add_argument("file", type=Path, help="what to write, chat_client.py say")
    path: Path = parser.parse_args(argv).file
    from . import __version__

    source = joined(__version__)
    try:
        path.write_text(source, encoding="utf-8")
    except OSError as error:
        parser.error(f"cannot write {path}: {error.strerror or error}")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
