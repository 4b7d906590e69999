"""Read docstrings, and evaluate the annotations of functions and classes. `schema.py` reads the parameters. No I/O.

Docstrings are in the style of Google, NumPy or reST. Annotations may be strings, and have `X | Y` also on Python 3.9.
"""

from __future__ import annotations

import ast
import collections.abc
import functools
import inspect
import re
import sys
import types
import typing
from typing import Any, ForwardRef, Union

# A title that begins a section. The group is set for sections that describe parameters.
_SECTION = re.compile(
    r"(?:(?:\w+ )?(Args|Arguments|Parameters|Params|Attributes|Fields)"
    r"|Returns?|Raises|Yields?|Examples?|Notes?|See Also|Warnings?)\s*:\s*"
)
_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
_UNDERLINE = re.compile("-{3,}")  # The line below a title in NumPy's style.
# A field of reST: its kind, its arguments, the last of which is the name of a parameter, and its text.
_FIELD = re.compile(r":(\w+)\b([^:]*):\s*(.*)")
_PARAMETER_FIELDS = ("param", "parameter", "arg", "argument", "key", "keyword", "ivar", "var")


def read_docstring(doc: str) -> tuple[str, dict[str, str]]:
    """The text outside the sections, and the description of each parameter."""
    lines = inspect.cleandoc(doc).splitlines()
    described: dict[str, str] = {}
    if any(_is_title(*pair) for pair in zip(lines, lines[1:])):
        summary = _read_numpy(lines, described)
    elif any(field and field[1] in _PARAMETER_FIELDS for field in map(_FIELD.match, lines)):
        summary = _read_rest(lines, described)
    else:
        summary = _read_google(lines, described)
    return "\n".join(summary).strip(), described


def _is_title(line: str, following: str) -> bool:
    """Whether a line is the title of a section in NumPy's style."""
    return bool(_UNDERLINE.fullmatch(following.strip()) and _SECTION.fullmatch(f"{line.strip()}:"))


def _read_numpy(lines: list[str], described: dict[str, str]) -> list[str]:
    """Describe the parameters and return the other lines. A section ends with the next one."""
    summary: list[str] = []
    section: re.Match[str] | None = None
    names: list[str] = []
    for line, following in zip(lines, [*lines[1:], ""]):
        if _is_title(line, following):
            section, names = _SECTION.fullmatch(f"{line.strip()}:"), []
        elif section is None:
            summary.append(line)
        elif section[1] and line[:1].strip() and not _UNDERLINE.fullmatch(line):  # `name : type`, or several names
            names = re.findall(r"\w+", line.partition(":")[0])
            described.update(dict.fromkeys(names, ""))
        else:
            described.update({name: f"{described[name]} {line.strip()}".strip() for name in names})
    return summary


def _read_rest(lines: list[str], described: dict[str, str]) -> list[str]:
    """Describe the parameters and return the other lines. A field ends where its indentation ends."""
    summary: list[str] = []
    name: str | None = None
    for line in lines:
        field = _FIELD.match(line)
        if field:
            is_parameter = field[1] in _PARAMETER_FIELDS and field[2].strip()
            name = field[2].split()[-1].lstrip("*") if is_parameter else ""
            described[name] = field[3]
        elif name is not None and (line[:1].isspace() or not line):
            described[name] = f"{described[name]} {line.strip()}".strip()
        else:
            name = None
            summary.append(line)
    described.pop("", None)  # The fields of returns, exceptions and types.
    return summary


def _read_google(lines: list[str], described: dict[str, str]) -> list[str]:
    """Describe the parameters and return the other lines. A section ends where its indentation ends."""
    # A title without indented text below it is no section, except above parameters, which some do not indent.
    summary: list[str] = []
    section: re.Match[str] | None = None
    name, indent = "", 0
    for number, line in enumerate(lines, 1):
        following = next((other for other in lines[number:] if other.strip()), "")
        title = _SECTION.fullmatch(line)
        if title and (following.startswith(" ") or (title[1] and _ENTRY.match(following))):
            section, name, indent = title, "", len(following) - len(following.lstrip())
        elif section is None or (line[:1].strip() if indent else not _ENTRY.match(line)):
            section = None
            summary.append(line)
        elif section[1] and line.strip():
            entry = _ENTRY.match(line.strip()) if len(line) - len(line.lstrip()) <= indent else None
            name = entry[1] if entry else name
            described[name] = entry[2] if entry else f"{described.get(name, '')} {line.strip()}".strip()
    return summary


def read_function(function: Any) -> tuple[str, dict[str, str]]:
    """Read the docstring of a function, of that of a partial, or of a callable object: of its class or `__call__`."""
    inner = function.func if isinstance(function, functools.partial) else function
    doc = inspect.getdoc(inner) or (None if inspect.isroutine(inner) else type(inner).__call__.__doc__)
    return read_docstring(doc or "")


def own_docstring(target: type) -> str:
    """The text of a class's docstring; empty for the signature that a dataclass without a docstring gets as one."""
    doc = target.__dict__.get("__doc__") or ""
    return "" if doc.startswith(f"{target.__name__}(") else read_docstring(doc)[0]


def evaluated_hints(owner: Any) -> dict[str, Any]:
    """The evaluated annotations of a class or function, including the metadata of Annotated."""
    try:
        if sys.version_info < (3, 11):
            return _hints_without_bars(owner)
        return typing.get_type_hints(owner, include_extras=True)
    except NameError as error:
        raise TypeError(f"{owner!r} has an annotation that cannot be evaluated: {error}") from error


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
    """The annotations with a Union for `X | Y`, which Python 3.9 cannot evaluate, nor 3.10 the strings of list["X"]."""
    hints: dict[str, Any] = {}
    for scope in reversed(getattr(owner, "__mro__", (owner,))):
        given = vars(scope).get("__annotations__", {}) if isinstance(scope, type) else scope.__annotations__
        names = {**vars(sys.modules[scope.__module__]), "_Union": Union}
        # A class, since the annotations of a function must not have ClassVar.
        replaced = {name: _without_bars(hint) for name, hint in given.items()}
        texts = {name: getattr(hint, "__forward_arg__", hint) for name, hint in replaced.items()}
        holder = type("holder", (), {"__annotations__": texts})
        hints.update(typing.get_type_hints(holder, names, include_extras=True))
    return hints


def _without_bars(hint: Any) -> Any:
    """An annotation with `X | Y` replaced in the strings of it, such as that of List["int | None"]."""
    text = hint.__forward_arg__ if isinstance(hint, ForwardRef) else hint
    if isinstance(text, str):
        return ForwardRef(ast.unparse(_ReplaceBars().visit(ast.parse(text, mode="eval"))))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return hint.copy_with((_without_bars(args[0]),))
    if origin in (None, typing.Literal, collections.abc.Callable):
        return hint
    replaced = tuple(map(_without_bars, args))
    return hint.copy_with(replaced) if hasattr(hint, "copy_with") else origin[replaced]


class _ReplaceBars(ast.NodeTransformer):
    """Replaces `X | Y` in the expression of a type, also in the strings in it."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if not isinstance(node.op, ast.BitOr):
            return node
        pair = ast.Tuple([node.left, node.right], ast.Load())
        return ast.Subscript(ast.Name("_Union", ast.Load()), pair, ast.Load())

    def visit_Constant(self, node: ast.Constant) -> Any:
        return self.visit(ast.parse(node.value, mode="eval").body) if isinstance(node.value, str) else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        name = ast.unparse(node.value).rpartition(".")[2]
        if name == "Annotated" and isinstance(node.slice, ast.Tuple):
            node.slice.elts[0] = self.visit(node.slice.elts[0])  # The others are not types.
        elif name != "Literal":
            self.generic_visit(node)
        return node
