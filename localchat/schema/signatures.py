"""Read the docstrings and annotations of functions and classes. No I/O.

Docstrings are in Google's style. Annotations are evaluated, also those that are strings, and `X | Y` on Python 3.9.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import types
import typing
from typing import Any, ForwardRef, Union

# Docstrings

_SECTION = re.compile(r"(\w+)(?: \w+)*:\s*$")
_ARGUMENT_SECTIONS = ("Args", "Arguments", "Parameters", "Params", "Attributes", "Fields")
_OTHER_SECTIONS = ("Returns", "Raises", "Yields", "Example", "Examples", "Note", "Notes", "See", "Warning")
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text outside the sections, and the description of each argument."""
    summary: list[str] = []
    described: dict[str, str] = {}
    section = name = ""
    indent = 0
    for line in inspect.cleandoc(doc).splitlines():
        header = _SECTION.match(line)
        if header and header[1] in (*_ARGUMENT_SECTIONS, *_OTHER_SECTIONS):
            section, indent = header[1], 0
        elif not section or (indent and line[:1].strip()):  # A line without indentation ends an indented section.
            section = ""
            summary.append(line)
        elif line.strip():
            indent = indent or _indent_of(line)
            entry = _ENTRY.match(line.strip()) if _indent_of(line) <= indent else None
            name = entry[1] if entry else name
            if section in _ARGUMENT_SECTIONS:
                described[name] = entry[2] if entry else f"{described.get(name, '')} {line.strip()}".strip()
    return "\n".join(summary).strip(), described


def read_function(function: Any) -> tuple[str, dict[str, str]]:
    """Read the docstring of a function, of the function of a partial, or of a callable object.

    The docstring of an object is that of its class, or else of its `__call__`.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    doc = inspect.getdoc(inner) or (None if inspect.isroutine(inner) else type(inner).__call__.__doc__)
    return read_docstring(doc or "")


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def own_docstring(target: type) -> str:
    """The text of a class's docstring; empty for the signature that a dataclass without a docstring gets as one."""
    doc = target.__dict__.get("__doc__") or ""
    return "" if doc.startswith(f"{target.__name__}(") else read_docstring(doc)[0]


# Annotations


def evaluated_hints(owner: Any) -> dict[str, Any]:
    """The evaluated annotations of a class or function, including the metadata of Annotated."""
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except NameError as error:
        raise TypeError(f"{owner!r} has an annotation that cannot be evaluated: {error}") from error
    except TypeError:
        if sys.version_info >= (3, 10):
            raise
        return _hints_without_bars(owner)


def without_return(function: Any) -> Any:
    """A function with the same parameters and no return annotation, which may use names for type checkers only."""
    real = getattr(function, "__func__", function)
    if not isinstance(real, types.FunctionType):
        return function
    copy = types.FunctionType(real.__code__, real.__globals__, real.__name__, real.__defaults__, real.__closure__)
    copy.__annotations__ = {name: hint for name, hint in real.__annotations__.items() if name != "return"}
    copy.__kwdefaults__, copy.__module__, copy.__qualname__ = real.__kwdefaults__, real.__module__, real.__qualname__
    return copy


def _hints_without_bars(owner: Any) -> dict[str, Any]:
    """The annotations with `X | Y` replaced by a Union: Python 3.9 can parse it but not evaluate it."""
    hints: dict[str, Any] = {}
    for scope in reversed(getattr(owner, "__mro__", (owner,))):
        given = vars(scope).get("__annotations__", {}) if isinstance(scope, type) else scope.__annotations__
        names = {**vars(sys.modules[scope.__module__]), "_Union": Union}
        # A class, since the annotations of a function must not have ClassVar.
        holder = type("holder", (), {"__annotations__": {name: _without_bars(hint) for name, hint in given.items()}})
        hints.update(typing.get_type_hints(holder, names, include_extras=True))
    return hints


def _without_bars(hint: Any) -> Any:
    """An annotation that is a string, with `X | Y` replaced. Other annotations are returned unchanged."""
    text = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
    return ast.unparse(_ReplaceBars().visit(ast.parse(text, mode="eval"))) if isinstance(text, str) else hint


class _ReplaceBars(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        pair = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name("_Union", ast.Load()), pair, ast.Load())
