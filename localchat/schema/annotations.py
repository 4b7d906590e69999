"""The annotations of functions and classes, evaluated. They may be strings, and have `X | Y` also on Python 3.9.

From Python 3.11 on, typing evaluates all of them. Earlier versions have no `X | Y` of strings, leave the strings in
`list["X"]` as they are, and find no names of a TypedDict that inherits from one of another module. From Python 3.14 on,
annotations that are not strings are evaluated when they are read, which fails if one of them has an unknown name.
"""

from __future__ import annotations

import ast
import collections.abc
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ForwardRef, Union

_TYPING_EVALUATES = sys.version_info >= (3, 11)


def class_annotations(target: type) -> dict[str, Any]:
    """The evaluated annotations of a class and of its bases, with the metadata of Annotated."""
    if _TYPING_EVALUATES:
        return _with_type_error(target, lambda: typing.get_type_hints(target, include_extras=True))
    return _with_type_error(
        target, lambda: {name: hint for base in reversed(target.__mro__) for name, hint in _class_annotations_of(base)}
    )


def parameter_annotations(function: Any) -> dict[str, Any]:
    """The evaluated annotations of the parameters of a function. A builtin function has none.

    That of the result is not evaluated: it is often a name of `if TYPE_CHECKING`.
    """
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    annotations = _unevaluated_annotations(function)
    annotations.pop("return", None)
    if not annotations:
        return {}
    names = getattr(function, "__globals__", {})
    if not _TYPING_EVALUATES or not isinstance(function, types.FunctionType):
        return _with_type_error(function, lambda: _evaluated(annotations, names))
    copy = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    copy.__annotations__, copy.__module__ = annotations, function.__module__
    if sys.version_info >= (3, 12):
        copy.__type_params__ = function.__type_params__
    return _with_type_error(function, lambda: typing.get_type_hints(copy, include_extras=True))


def _unevaluated_annotations(function: Any) -> dict[str, Any]:
    """The annotations of a function, of which one with an unknown name is a ForwardRef or a string."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(function, format=annotationlib.Format.FORWARDREF))
    return dict(getattr(function, "__annotations__", None) or {})


def signature_of(function: Any) -> inspect.Signature:
    """The signature of a callable object, whose annotations are not evaluated. Raises ValueError if it has none."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def _with_type_error(owner: Any, evaluate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a function that evaluates annotations. Raises TypeError for one that cannot be evaluated."""
    try:
        return evaluate()
    except (NameError, SyntaxError, AttributeError) as error:
        raise TypeError(f"{owner!r} has an annotation that cannot be evaluated: {error}") from error


def _class_annotations_of(base: type) -> Iterable[tuple[str, Any]]:
    """The evaluated annotations of a class without those of its bases."""
    module = sys.modules.get(base.__module__)
    names = {**({} if module is None else vars(module)), **vars(base)}
    return _evaluated(vars(base).get("__annotations__", {}), names).items()


def _evaluated(annotations: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _evaluate_one(annotation, names) for name, annotation in annotations.items()}


def _evaluate_one(annotation: Any, names: Mapping[str, Any]) -> Any:
    """An annotation in which no string is left."""
    if isinstance(annotation, ForwardRef):
        module = getattr(annotation, "__forward_module__", None)  # That of a TypedDict, from which another inherits.
        module = sys.modules.get(module) if isinstance(module, str) else module
        return _evaluate_one(annotation.__forward_arg__, names if module is None else vars(module))
    if isinstance(annotation, str):
        expression = ast.fix_missing_locations(_ReplaceBars().visit(ast.parse(annotation.strip(), mode="eval")))
        scope = {**names, "_Union": Union}  # `eval` adds the builtins.
        return _evaluate_one(eval(compile(expression, "<annotation>", "eval"), scope), names)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        parameters = (_evaluate_one(arguments[0], names), *annotation.__metadata__)
        return typing.Annotated[parameters]
    if not arguments or origin in (typing.Literal, collections.abc.Callable):
        return annotation
    evaluated = tuple(_evaluate_one(argument, names) for argument in arguments)
    if evaluated == arguments:
        return annotation
    if origin is getattr(types, "UnionType", Union):
        return Union[evaluated]
    return annotation.copy_with(evaluated) if hasattr(annotation, "copy_with") else origin[evaluated]


class _ReplaceBars(ast.NodeTransformer):
    """Replaces `X | Y` in the expression of a type by a Union, also in the strings in it."""

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
