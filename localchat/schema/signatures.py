"""The signatures of functions: which targets are functions, and their parameters as fields. No I/O."""

from __future__ import annotations

import functools
import inspect
import typing
from typing import Any, Union

from .annotations import parameter_annotations, signature_of
from .docstrings import read_docstring
from .shapes import ABSENT, Field, shape_of, with_description


def is_function(target: Any) -> bool:
    """Whether a target is a function, a method or another callable object, and not a type."""
    if hasattr(target, "__supertype__"):  # In Python 3.9 a NewType is a function.
        return False
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return True
    is_type = isinstance(target, type) or typing.get_origin(target) or type(target).__module__ in ("typing", "types")
    return callable(target) and not is_type


def read_function(function: Any) -> tuple[str, dict[str, str]]:
    """The text of the docstring of a function and the description of each parameter.

    The docstring of a partial is that of its function; that of a callable object belongs to its class or `__call__`.
    """
    inner = function.func if isinstance(function, functools.partial) else function
    doc = inspect.getdoc(inner) or (None if inspect.isroutine(inner) else type(inner).__call__.__doc__)
    return read_docstring(doc or "")


def function_fields(function: Any, name: str) -> list[Field]:
    """The parameters of a function as fields. Raises TypeError for one that cannot be given by name."""
    inner, bound = function, {}
    if isinstance(function, functools.partial):  # Its bound arguments are not for the model.
        inner, bound = function.func, function.keywords
        function = functools.partial(inner, *function.args, **bound)  # Without `__wrapped__`, which has all parameters.
    annotations = parameter_annotations(inner if inspect.isroutine(inner) else type(inner).__call__)
    descriptions = read_function(function)[1]
    fields = []
    for parameter in _parameters(function, name):
        if parameter.name in bound:
            continue
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a model can only give parameters by name, not {str(parameter)!r}")
        annotation = annotations.get(parameter.name, Any)
        if parameter.default is None and annotation is not Any:
            annotation = Union[annotation, None]  # The model may pass the default too. Before Python 3.11, typing does.
        shape = with_description(shape_of(annotation), descriptions.get(parameter.name))
        fields.append(Field(parameter.name, shape, parameter.default is ABSENT, parameter.default))
    return fields


def _parameters(function: Any, name: str) -> list[inspect.Parameter]:
    try:
        return list(signature_of(function).parameters.values())
    except ValueError as error:  # Some builtin functions have no signature.
        raise TypeError(f"{name}: its parameters are not known, write a function that calls it: {error}") from error
