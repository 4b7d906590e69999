"""Descriptions in docstrings, and annotations, of functions and classes. No I/O.

Docstrings are read in Google's style. Annotations are evaluated, those that are text and those with `X | Y` on
Python 3.9 too.
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
    """The text before the sections, and what the section of the arguments has for each (Google's style)."""
    summary: list[str] = []
    described: dict[str, str] = {}
    section = name = ""
    indent = 0
    for line in inspect.cleandoc(doc).splitlines():
        header = _SECTION.match(line)
        if header and header[1] in (*_ARGUMENT_SECTIONS, *_OTHER_SECTIONS):
            section, indent = header[1], 0
        elif not section or (indent and line[:1].strip()):  # A line that is not indented ends a section that was.
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
    """The same of a function: of what a partial calls, and of an object's __call__ where its class has no docstring."""
    inner = function.func if isinstance(function, functools.partial) else function
    doc = inspect.getdoc(inner) or (None if inspect.isroutine(inner) else type(inner).__call__.__doc__)
    return read_docstring(doc or "")


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def own_docstring(target: type) -> str:
    """What was written about a class; dataclasses without a docstring get their signature as one."""
    doc = target.__dict__.get("__doc__") or ""
    return "" if doc.startswith(f"{target.__name__}(") else read_docstring(doc)[0]


# Annotations


def evaluated_hints(owner: Any) -> dict[str, Any]:
    """The annotations of a class or function, evaluated, what Annotated adds included."""
    try:
        return typing.get_type_hints(owner, include_extras=True)
    except NameError as error:
        raise TypeError(f"{owner!r} has an annotation that cannot be read from outside: {error}") from error
    except TypeError:
        if sys.version_info >= (3, 10):
            raise
        return _hints_without_bars(owner)


def without_return(function: Any) -> Any:
    """The same function as far as parameters go: what it returns may be known to type checkers alone."""
    real = getattr(function, "__func__", function)
    if not isinstance(real, types.FunctionType):
        return function
    alike = types.FunctionType(real.__code__, real.__globals__, real.__name__, real.__defaults__, real.__closure__)
    alike.__annotations__ = {name: hint for name, hint in real.__annotations__.items() if name != "return"}
    alike.__kwdefaults__, alike.__module__, alike.__qualname__ = real.__kwdefaults__, real.__module__, real.__qualname__
    return alike


def _hints_without_bars(owner: Any) -> dict[str, Any]:
    """For Python 3.9, which can read `X | Y` but not evaluate it."""
    hints: dict[str, Any] = {}
    for scope in reversed(getattr(owner, "__mro__", (owner,))):
        noted = vars(scope).get("__annotations__", {}) if isinstance(scope, type) else scope.__annotations__
        names = {**vars(sys.modules[scope.__module__]), "_Union": Union}
        # A class, since those may say ClassVar.
        holder = type("holder", (), {"__annotations__": {name: _without_bars(hint) for name, hint in noted.items()}})
        hints.update(typing.get_type_hints(holder, names, include_extras=True))
    return hints


def _without_bars(hint: Any) -> Any:
    text = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
    return ast.unparse(_Bars().visit(ast.parse(text, mode="eval"))) if isinstance(text, str) else hint


class _Bars(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        pair = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name("_Union", ast.Load()), pair, ast.Load())
