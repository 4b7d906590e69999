"""The error of this package."""

from __future__ import annotations


class TemplateError(ValueError):
    """The template is invalid, or refuses the conversation. `param` is the path of the field, None if unknown."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
