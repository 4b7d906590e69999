"""Dialects: the markers of reasoning and tool calls of each model family."""

from .dialect import Dialect
from .families import DIALECTS, detect

__all__ = ["DIALECTS", "Dialect", "detect"]
