"""The text that a chat request makes of the model's template, as it would be answered."""

from __future__ import annotations

from ..api.chat import ChatRequest
from ..chat.errors import TemplateError
from ..chat.segments import text_of
from .service import Model, api_error


def prompt_of(model: Model, request: ChatRequest) -> str:
    """The prompt, in which a user's text that looks like a control token is not told apart.

    Raises:
        BadRequest: The template refuses the request.
    """
    try:
        segments = model._dialect(request).template.render(
            request.messages,
            tools=request.tools if request.tool_choice != "none" else (),
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            prefix=request.prefix,
            variables=request.template_vars,
        )
    except TemplateError as error:
        raise api_error(error, model.engine) from error
    return text_of(segments)
