"""What chat/ raises."""

from __future__ import annotations


class TemplateError(ValueError):
    """The conversation cannot be shown to this model; the message tells what to change."""

    status = 400

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
