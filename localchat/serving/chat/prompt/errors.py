"""The error of this package."""

from __future__ import annotations


class TemplateError(ValueError):
    """The template is invalid, or refuses the conversation."""
