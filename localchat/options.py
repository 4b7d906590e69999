"""What one call asks for: its options to a request body, and the value that its answer should hold. No I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Union

from .errors import StatusError
from .http1 import check_method
from .keywords import RequestKeywords, check_keywords
from .payloads import build_request
from .settings import Settings, companion
from .think_tags import ThinkSplitter
from .timeouts import Timeout

# What `complete` takes: text, tokens, or several of one of them.
TextPrompt = Union[str, Sequence[int], Sequence[str], Sequence[Sequence[int]]]


CHAT_PATH = "chat/completions"


def check_text_prompt(prompt: object) -> None:
    """Raise TypeError for what `complete` cannot take."""
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Sequence):
        raise TypeError(f"complete takes text, a list of texts or of tokens, not {type(prompt).__name__}")


class CallOptions(NamedTuple):
    """One call: what the body is made of, and what stays here."""

    prompt: Any
    n_choices: int
    think_tags: str
    # The value that the answer is to hold (structured.ExpectedValue), None for any text.
    expected: Any
    timeout: Timeout
    max_retries: int
    system: str | None
    model: str | None
    headers: Mapping[str, str]
    # `images` and `audio` that `with_media` has to put into the prompt.
    media: Mapping[str, Any]
    options: Mapping[str, Any]


def read_options(settings: Settings, prompt: Any, options: Mapping[str, Any], keywords: Any, what: str) -> CallOptions:
    """Options of a call to what is sent and what is ours.

    Raises:
        TypeError: An option is not one of `keywords`; the message calls the method `what`.
        ValueError: The value of an option cannot be sent.
    """
    check_keywords(options, keywords, what)
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, which is no finite number")
    sent = dict(options)
    media, expected = take_media(sent), None
    if _wants_value(sent.get("response_format")):
        expected = companion("structured").ExpectedValue(sent.pop("response_format"))
    timeout, headers = sent.pop("timeout", None), sent.pop("extra_headers", None) or {}
    timeout = settings.timeout if timeout is None else Timeout.of(timeout)
    n_choices, think_tags = _n_choices(prompt, sent), sent.pop("think_tags", "auto")
    ThinkSplitter(think_tags)  # A wrong mode is an error here, not in the middle of a stream.
    for name in ("retries_on_mismatch", "batch_size"):  # The method itself reads these.
        sent.pop(name, None)
    system, model, max_retries = (sent.pop(name, None) for name in ("system", "model", "max_retries"))
    max_retries = settings.max_retries if max_retries is None else max_retries
    made = (timeout, max_retries, system, model, headers, media, sent)
    return CallOptions(prompt, n_choices, think_tags, expected, *made)


def with_media(given: CallOptions) -> CallOptions:
    """The call with images and audio in its prompt. It reads their files, and so may wait for a disk.

    Raises:
        ValueError, OSError: One cannot be read, or is of no known format.
    """
    if not given.media:
        return given
    return given._replace(prompt=companion("media").attach(given.prompt, **given.media), media={})


def read_request_options(settings: Settings, method: str, options: Mapping[str, Any]) -> CallOptions:
    """The same of Client.request.

    Raises:
        TypeError, ValueError: An option is none of such a call, or the method cannot be sent.
    """
    check_method(method)
    return read_options(settings, "", options, RequestKeywords, "request")


def read_any(raw: bytes) -> Any:
    """The value of a body: JSON, else text, None if it is empty."""
    text = raw.decode("utf-8", "replace")
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        return text


def request_body(settings: Settings, given: CallOptions, model: str | None, path: str) -> dict[str, Any]:
    """The body of a chat request; for /completions it has the prompt where the other has messages."""
    prompt = given.prompt if path == CHAT_PATH else []
    body = build_request(prompt, model=model, system=given.system, options=given.options)
    if not settings.takes_stream_options:
        body.pop("stream_options", None)
    if path != CHAT_PATH:
        del body["messages"]
        body["prompt"] = given.prompt
    return body


def adapted_body(given: CallOptions, body: dict[str, Any], error: StatusError) -> dict[str, Any]:
    """The body without what this server refuses: `stream_options`, or a form of `response_format`.

    Raises:
        StatusError: This error, if it is about something else.
    """
    if "stream_options" in body and "stream_options" in error.body:
        return {name: value for name, value in body.items() if name != "stream_options"}
    if given.expected is None or not given.expected.weaken(error):
        raise error
    return body


def _n_choices(prompt: Any, options: Mapping[str, Any]) -> int:
    """How many choices there will be: `n` of a chat, and of each text to be completed."""
    n = {**options, **(options.get("extra_body") or {})}.get("n")
    several = isinstance(prompt, (list, tuple)) and all(isinstance(text, (str, list, tuple)) for text in prompt)
    return (n if isinstance(n, int) else 1) * (max(len(prompt), 1) if several else 1)


def take_media(options: dict[str, Any]) -> dict[str, Any]:
    """Take images and audio out of the options; a mapping is OpenAI's `audio`, which is about the answer."""
    return {
        name: options.pop(name)
        for name in ("images", "audio")
        if options.get(name) is not None and not (name == "audio" and isinstance(options[name], Mapping))
    }


def _wants_value(target: Any) -> bool:
    """Whether a response_format names a type or a schema, not what the protocol itself knows."""
    kinds = ("json_schema", "json_object", "text")
    return target is not None and not (isinstance(target, Mapping) and target.get("type") in kinds)
