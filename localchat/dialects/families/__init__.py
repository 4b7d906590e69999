"""The model families. Every `Dialect` at the top level of a module of this folder is one, and needs no other entry."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ..dialect import Dialect


def declared() -> dict[str, Dialect]:
    """The dialects of all modules here, by name. `pkgutil` lists modules in zip archives too."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    dialects = [value for module in modules for value in vars(module).values() if isinstance(value, Dialect)]
    return {dialect.name: dialect for dialect in dialects}
