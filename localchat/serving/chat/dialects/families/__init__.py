"""The model families. Each `Dialect` at the top level of a module in this folder is registered automatically."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from ..dialect import Dialect


def load_families() -> dict[str, Dialect]:
    """The dialects of all modules in this folder, by name. `pkgutil` also finds modules in zip archives."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    dialects = [value for module in modules for value in vars(module).values() if isinstance(value, Dialect)]
    return {dialect.name: dialect for dialect in dialects}
