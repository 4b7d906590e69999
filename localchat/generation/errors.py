"""Converts errors of the engine and the chat template to API errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ..engine import (
    Cancelled,
    Engine,
    EngineError,
    EngineStopped,
    InvalidGrammar,
    InvalidToken,
    PromptTooLong,
    QueueFull,
    TextTooLong,
    WritesNoText,
)
from ..prompt.errors import TemplateError
from ..protocol import errors

# Stands for the field that has the prompt: its name depends on the endpoint.
PROMPT = "the field of the prompt"
# The API error and the `param` for each class of engine errors; the first row that matches applies. Any other engine
# error becomes an InferenceError.
_API_ERRORS: tuple[tuple[type[EngineError], type[errors.ApiError], str | None], ...] = (
    (PromptTooLong, errors.ContextLengthExceeded, PROMPT),
    (TextTooLong, errors.ContextLengthExceeded, PROMPT),
    (InvalidToken, errors.BadRequest, PROMPT),
    (QueueFull, errors.QueueFull, None),
    (WritesNoText, errors.NotSupported, "model"),
)


@contextlib.contextmanager
def wire_errors(engine: Engine, prompt_field: str) -> Iterator[None]:
    """Convert engine errors and template errors of the `with` block to ApiErrors, except Cancelled.

    `prompt_field` is the field of the request that has the prompt, such as "messages".
    """
    try:
        yield
    except Cancelled:
        raise
    except (EngineError, TemplateError) as error:
        raise api_error(error, engine, prompt_field) from error


def api_error(error: EngineError | TemplateError, engine: Engine, prompt_field: str) -> errors.ApiError:
    if isinstance(error, TemplateError):
        return errors.BadRequest(str(error), error.param or prompt_field)
    if isinstance(error, EngineStopped) and engine.failure is None:
        return errors.ShuttingDown(errors.SHUTTING_DOWN)
    if isinstance(error, InvalidGrammar):
        return errors.BadRequest(str(error), error.origin)
    for kind, api_kind, param in _API_ERRORS:
        if isinstance(error, kind):
            return api_kind(str(error), prompt_field if param is PROMPT else param)
    return errors.InferenceError(str(error))
