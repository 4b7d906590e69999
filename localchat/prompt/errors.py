"""The error of this package."""

from __future__ import annotations


class TemplateError(ValueError):
    """The template is invalid, or refuses the conversation."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """`param` is the field of the request that has the error; None: the field with the messages."""
        super().__init__(message)
        self.param = param
