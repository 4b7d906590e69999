"""Converts errors of the engine and the chat template to API errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..core import errors
from ..engine import (
    AnyEngine,
    Cancelled,
    EngineError,
    EngineStopped,
    InvalidGrammar,
    InvalidToken,
    PromptTooLong,
    QueueFull,
    TextTooLong,
    WritesNoText,
)
from .prompt.sandbox import TemplateError


@contextlib.contextmanager
def wire_errors(engine: AnyEngine, prompt_field: str) -> Iterator[None]:
    """Convert engine errors and template errors of the `with` block to ApiErrors, except Cancelled.

    `prompt_field` is the field of the request that has the prompt, such as "messages".
    """
    try:
        yield
    except Cancelled:
        raise
    except (EngineError, TemplateError) as error:
        raise api_error(error, engine, prompt_field) from error


def api_error(error: EngineError | TemplateError, engine: AnyEngine, prompt_field: str) -> errors.ApiError:
    """The API error for an error of the engine or of the chat template."""
    if isinstance(error, TemplateError):
        return errors.BadRequest(str(error), prompt_field)
    if isinstance(error, EngineStopped) and engine.failure is None:
        return errors.ShuttingDown(errors.SHUTTING_DOWN)
    if isinstance(error, InvalidGrammar):
        return errors.BadRequest(str(error), error.origin)
    if isinstance(error, PromptTooLong):
        return errors.ContextLengthExceeded(str(error), prompt_field, n_tokens=error.n_prompt, n_ctx=error.n_ctx)
    if isinstance(error, TextTooLong):
        return errors.ContextLengthExceeded(str(error), prompt_field)
    if isinstance(error, InvalidToken):
        return errors.BadRequest(str(error), prompt_field)
    if isinstance(error, QueueFull):
        return errors.QueueFull(str(error))
    if isinstance(error, WritesNoText):
        return errors.NotSupported(str(error), "model")
    return errors.InferenceError(str(error))
