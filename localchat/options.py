"""What one call asks for: its options to a request body, and the value that its answer should hold. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .assembly import Accumulator
from .errors import StatusError
from .events import Reply, changed
from .failures import not_json
from .payloads import Prompt, build_request, parse_embeddings
from .settings import Settings, companion
from .timeouts import Timeout


class CallOptions(NamedTuple):
    """One call of `chat` or `stream`: what the body is made of, and what stays here."""

    prompt: Prompt
    stream: bool
    accumulator: Accumulator
    timeout: Timeout
    system: str | None
    model: str | None
    headers: Mapping[str, str]
    options: Mapping[str, Any]


def read_options(settings: Settings, prompt: Prompt, stream: bool, options: Mapping[str, Any]) -> CallOptions:
    """Options of a call to what is sent and what is ours."""
    sent = dict(options)
    prompt = _with_media(prompt, sent)
    if _wants_value(sent.get("response_format")):
        sent["response_format"] = companion("schema").response_format(sent["response_format"])
    timeout, headers = sent.pop("timeout", None), sent.pop("extra_headers", None) or {}
    timeout = settings.timeout if timeout is None else Timeout.of(timeout)
    accumulator = Accumulator(_n_choices(prompt, sent), sent.pop("think_tags", "auto"))
    system, model = sent.pop("system", None), sent.pop("model", None)
    return CallOptions(prompt, stream, accumulator, timeout, system, model, headers, sent)


def chat_body(settings: Settings, options: CallOptions, model: str | None) -> dict[str, Any]:
    """The body of a chat request."""
    given, system = options.options, options.system
    body = build_request(options.prompt, model=model, system=system, stream=options.stream, options=given)
    if not settings.takes_stream_options:
        body.pop("stream_options", None)
    return body


def completion_body(settings: Settings, options: CallOptions, model: str | None) -> dict[str, Any]:
    """The body of a request for /completions: it has a prompt where the other has messages."""
    if options.system is not None:
        raise ValueError("a completion has no system message: put it into the prompt")
    body = chat_body(settings, options._replace(prompt=[]), model)
    del body["messages"]
    return {**body, "prompt": options.prompt}


def embedding_body(options: CallOptions, texts: Sequence[str], model: str | None) -> dict[str, Any]:
    """The body of a request for /embeddings."""
    given = dict(options.options)
    given.update(given.pop("extra_body", None) or {})
    body = {"model": model, **given, "input": texts}
    return {name: value for name, value in body.items() if value is not None}


def read_vectors(settings: Settings, raw: bytes, n_texts: int) -> list[list[float]]:
    """The vectors of an answer of /embeddings."""
    try:
        return parse_embeddings(json.loads(raw), n_texts)
    except (ValueError, RecursionError) as error:
        raise not_json(settings, "embeddings are", raw) from error


def with_value(reply: Reply, target: Any) -> Reply:
    """The reply with `parsed` in it, if its `response_format` said what it holds.

    Raises:
        DoesNotFit: It holds something else.
    """
    return changed(reply, parsed=companion("schema").read_reply(target, reply)) if _wants_value(target) else reply


def without_stream_options(body: dict[str, Any], error: StatusError) -> dict[str, Any]:
    """The body for servers of old that refuse stream_options; whoever sends it with success does so ever after.

    Raises:
        StatusError: This error, if it is about something else.
    """
    if "stream_options" not in body or "stream_options" not in error.body:
        raise error
    return {name: value for name, value in body.items() if name != "stream_options"}


def _n_choices(prompt: Any, options: Mapping[str, Any]) -> int:
    """How many choices there will be: `n` of a chat, and of each text to be completed."""
    n = {**options, **(options.get("extra_body") or {})}.get("n")
    several = isinstance(prompt, (list, tuple)) and all(isinstance(text, (str, list, tuple)) for text in prompt)
    return (n if isinstance(n, int) else 1) * (max(len(prompt), 1) if several else 1)


def _with_media(prompt: Prompt, options: dict[str, Any]) -> Prompt:
    """Take images and audio out of the options; a mapping is OpenAI's `audio`, which is about the answer."""
    sources = {
        name: options.pop(name)
        for name in ("images", "audio")
        if options.get(name) is not None and not (name == "audio" and isinstance(options[name], Mapping))
    }
    return companion("media").attach(prompt, **sources) if sources else prompt


def _wants_value(target: Any) -> bool:
    """Whether a response_format names a type or a schema, not what the protocol itself knows."""
    kinds = ("json_schema", "json_object", "text")
    return target is not None and not (isinstance(target, Mapping) and target.get("type") in kinds)
