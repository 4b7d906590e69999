"""The options of a call: parsed, and converted to the body of a request. No I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

from ..errors import StatusError
from ..reply.payloads import build_request, with_extra_body
from .http1 import check_method
from .keywords import RequestKeywords, check_keywords
from .settings import Settings, companion
from .timeouts import Timeout

# The prompt of `complete`: a text or a list of tokens, or a list of these.
TextPrompt = Union[str, Sequence[int], Sequence[str], Sequence[Sequence[int]]]

CHAT_PATH = "chat/completions"


def check_text_prompt(prompt: object) -> None:
    """Raise TypeError for a prompt that `complete` does not accept."""
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
        raise TypeError(f"complete takes text, a list of texts or of tokens, not {type(prompt).__name__}")


class CallOptions(NamedTuple):
    """The parsed options of one call."""

    prompt: Any
    # The number of choices that the response has to contain.
    n_choices: int
    think_tags: str
    # The value that the completion has to contain (structured.ExpectedValue), None for any text.
    expected: Any
    timeout: Timeout
    max_retries: int
    system: str | None
    model: str | None
    headers: Mapping[str, str]
    # `images` and `audio`, which `with_media` adds to the prompt.
    media: Mapping[str, Any]
    # The other options: fields of the request, and `extra_body`.
    options: Mapping[str, Any]


def read_options(settings: Settings, prompt: Any, options: Mapping[str, Any], keywords: Any, what: str) -> CallOptions:
    """Parse the options of a call.

    Raises:
        TypeError: An option is not in the TypedDict `keywords`; `what` is the name of the method in the message.
        ValueError: The value of an option is not valid.
    """
    check_keywords(options, keywords, what)
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, which is not a finite number")
    fields = dict(options)
    media, expected = take_media(fields), None
    if _is_value_format(fields.get("response_format")):
        expected = companion("schema.structured").ExpectedValue(fields.pop("response_format"))
    for name in ("retries_on_mismatch", "batch_size"):  # The methods read these options themselves.
        fields.pop(name, None)
    timeout, max_retries = fields.pop("timeout", None), fields.pop("max_retries", None)
    return CallOptions(
        prompt=prompt,
        n_choices=_n_choices(prompt, fields),
        think_tags=fields.pop("think_tags", "auto"),
        expected=expected,
        timeout=settings.timeout if timeout is None else Timeout.of(timeout),
        max_retries=settings.max_retries if max_retries is None else max_retries,
        system=fields.pop("system", None),
        model=fields.pop("model", None),
        headers=fields.pop("extra_headers", None) or {},
        media=media,
        options=fields,
    )


def with_media(call_options: CallOptions) -> CallOptions:
    """Add the images and the audio to the prompt. This reads their files, so it may block.

    Raises:
        ValueError, OSError: A file cannot be read, or has an unknown format.
    """
    if not call_options.media:
        return call_options
    return call_options._replace(
        prompt=companion("extras.media").attach(call_options.prompt, **call_options.media), media={}
    )


def read_request_options(settings: Settings, method: str, options: Mapping[str, Any]) -> CallOptions:
    """Parse the options of Client.request.

    Raises:
        TypeError, ValueError: An option is unknown, or an option or the method is not valid.
    """
    check_method(method)
    return read_options(settings, "", options, RequestKeywords, "request")


def parse_any_body(raw: bytes) -> Any:
    """Parse a body: its JSON, its text if it is not JSON, None if it is empty."""
    text = raw.decode("utf-8", "replace")
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text


def request_body(settings: Settings, call_options: CallOptions, model: str | None, path: str) -> dict[str, Any]:
    """The body of a request; one for /completions has `prompt` in place of `messages`."""
    prompt = call_options.prompt if path == CHAT_PATH else []
    body = build_request(prompt, model=model, system=call_options.system, options=call_options.options)
    if not settings.takes_stream_options:
        body.pop("stream_options", None)
    if path != CHAT_PATH:
        del body["messages"]
        body["prompt"] = call_options.prompt
    return body


def adapted_body(call_options: CallOptions, body: dict[str, Any], error: StatusError) -> dict[str, Any]:
    """The body without the field that the server refused, or with a weaker mode of the expected value.

    Raises:
        StatusError: This error, if the server refused something else.
    """
    if "stream_options" in body and "stream_options" in error.body:
        return {name: value for name, value in body.items() if name != "stream_options"}
    if call_options.expected is None or not call_options.expected.weaken(error):
        raise error
    return body


def _n_choices(prompt: Any, options: Mapping[str, Any]) -> int:
    """The number of choices: `n`, for each prompt of `complete` if there are several."""
    n = with_extra_body(options).get("n")
    several = isinstance(prompt, (list, tuple)) and all(isinstance(text, (str, list, tuple)) for text in prompt)
    return (n if isinstance(n, int) else 1) * (max(len(prompt), 1) if several else 1)


def take_media(options: dict[str, Any]) -> dict[str, Any]:
    """Remove images and audio from the options and return them. `audio` that is a mapping is OpenAI's option."""
    return {
        name: options.pop(name)
        for name in ("images", "audio")
        if options.get(name) is not None and not (name == "audio" and isinstance(options[name], Mapping))
    }


def _is_value_format(target: Any) -> bool:
    """Whether a response_format is a type or a schema, and not an object of OpenAI's API."""
    kinds = ("json_schema", "json_object", "text")
    return target is not None and not (isinstance(target, Mapping) and target.get("type") in kinds)
