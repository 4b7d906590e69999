"""The errors that servers report in a body or in the middle of a stream, in any format. No I/O."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from ..events import ErrorEvent
from ..texts import excerpt
from .finish_reason import normal_reason
from .payloads import Json, as_list, dump, non_blank

# The names under which servers report an error, in lower case, without underscores: `error`, `errors`, `error_msg`,
# `errCode`, `exception`. `base_resp` is MiniMax's status. A rate or a count of errors is a measure.
_ERROR_NAME = re.compile(r"(?!.*(rate|ratio|count)$)(err(or|no|code|msg|message|$)|exception|fault$|failure|baseresp$)")
# The values of a status, a code or such a field that report no error, as text in lower case.
_SUCCESS = frozenset({"", "0", "200", "none", "null", "false", "ok", "success", "succeeded", "completed"})

# The fields of an error object, in the order of their precedence.
_MESSAGE_NAMES = [
    "message",
    "detail",
    "msg",
    "error_msg",
    "error_message",
    "errorMessage",
    "errMsg",
    "errmsg",
    "status_msg",
    "error_description",
    "reason",
    "title",
    "Message",
    "error",
]
_CODE_NAMES = ["code", "error_code", "errorCode", "errCode", "errcode", "status_code", "statusCode"]
_TYPE_NAMES = ["type", "error_type", "errorType"]
_MAX_MESSAGE_DEPTH = 4  # Of the objects and lists in which a message is looked for.


def parse_error(body: Any) -> ErrorEvent:
    """Parse the error in a body, text or parsed JSON of any format. An unknown body becomes the message, cut."""
    if isinstance(body, str):
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            parsed = body
        if parsed in (None, [], {}) or (isinstance(parsed, str) and not parsed.strip()):
            return ErrorEvent("no reason given", raw=body)
        return ErrorEvent(excerpt(parsed), raw=body) if isinstance(parsed, str) else parse_error(parsed)
    outer = body[0] if isinstance(body, list) and body else body
    outer = outer if isinstance(outer, dict) else {"error": outer}
    inner = outer.get("error") or outer.get("errors") or outer.get("base_resp") or outer
    if isinstance(inner, list) and len(inner) == 1:
        inner = inner[0]
    # `error` may be a short text, such as "Bad Request", or true; then the reason is beside it.
    messages = [_message_of(inner)] if isinstance(inner, dict) else [_message_of(inner), _message_of(outer)]
    inner = inner if isinstance(inner, dict) else outer
    metadata = inner.get("metadata")  # OpenRouter has the error of the provider there.
    messages.append(excerpt(_message_of(metadata.get("raw"))) if isinstance(metadata, dict) else "")
    message = ": ".join(dict.fromkeys(filter(None, messages))) or _message_of(outer) or excerpt(dump(body))
    error_type, code, param = (_first_text(inner, names) for names in (_TYPE_NAMES, _CODE_NAMES, ["param"]))
    return ErrorEvent(message, error_type, code, param, raw=body)


class Report(NamedTuple):
    """What a payload says about errors."""

    # "error": it has a field for errors. "likely error": its fields are those of an error object, which other payloads
    # may have too. "no error": it is a part of a response, or a keep-alive. "unknown": it is none of these.
    status: str
    error: Any  # The value of `error`, or the whole payload; None without an error.


def read_report(payload: Json) -> Report:
    """Whether a payload reports an error, by its fields apart from the finish reasons."""
    error = _explicit_error(payload)
    if error is not None:
        return Report("error", error)
    if not payload.get("choices") and _is_error_object(payload):
        return Report("likely error", payload)
    return Report("no error" if _is_part(payload) or _is_keep_alive(payload) else "unknown", None)


def may_report_error(payload: Json) -> bool:
    """Whether a payload reports an error, by a field or by a finish reason, or is unknown."""
    reasons = (choice.get("finish_reason") for choice in as_list(payload.get("choices")) if isinstance(choice, dict))
    if any(reason and normal_reason(str(reason)) == "error" for reason in reasons):
        return True
    return read_report(payload).status != "no error"


def _is_error_object(payload: Json) -> bool:
    """Whether the fields of a payload are those of an error object: a message or a code."""
    if str(payload.get("code", payload.get("statusCode"))) in ("0", "200"):  # Some send it with every payload.
        return False
    fields = [payload.get(name) for name in ("detail", "code", "statusCode")]
    return non_blank(payload.get("message")) is not None or any(value not in (None, "") for value in fields)


def _explicit_error(payload: Json) -> Any:
    """The value of `error`, also of a choice or of `x_groq`; or the payload if another field is named like an error."""
    for place in (payload, *as_list(payload.get("choices")), payload.get("x_groq")):
        if isinstance(place, dict) and _is_error(place.get("error")):
            return place["error"]
    if any(payload.get(name) in ("error", "failed") for name in ("object", "type", "event", "status")):
        return payload
    names = (name for name in payload if _ERROR_NAME.match(name.replace("_", "").replace("-", "").lower()))
    return payload if any(_is_error(payload[name]) for name in names) else None


def _is_error(value: Any) -> bool:
    """Whether the value of a field for errors reports one. Some servers send the field with every payload."""
    if isinstance(value, dict):
        return _is_error(value["status_code"]) if "status_code" in value else any(value.values())
    if isinstance(value, (int, float)):
        return value not in (0, 200)
    return bool(value) if isinstance(value, list) else str(value).strip().lower() not in _SUCCESS


# The fields of which a part of a response has at least one, besides its name and the model.
_PART_NAMES = frozenset(
    ["choices", "usage", "message", "done", "response", "timings", "prompt_progress", "x_groq", "sglext", "thought"]
)
# The fields that describe a response. A payload that has only these is a part of it as well.
_LABEL_NAMES = frozenset(
    ["id", "object", "created", "model", "system_fingerprint", "service_tier", "provider", "obfuscation"]
)
KEEP_ALIVES = ("ping", "heartbeat", "keepalive", "keep-alive")


def _is_part(payload: Json) -> bool:
    """Whether a payload is a part of a response, by its fields. A payload with an id alone may report anything."""
    is_named = str(payload.get("object")).startswith(("chat.completion", "text_completion"))
    return is_named or not _PART_NAMES.isdisjoint(payload) or (bool(payload) and payload.keys() <= _LABEL_NAMES)


# The fields of nearly all payloads of a stream.
_PLAIN_FIELDS = frozenset({*_LABEL_NAMES, "choices", "usage", "timings"})


def is_plain_payload(payload: Json) -> bool:
    """Whether a payload is, by the names of its fields, a part of a stream without an error and without an end."""
    choices = payload.get("choices")
    if not isinstance(choices, list) or not payload.keys() <= _PLAIN_FIELDS or payload.get("object") == "error":
        return False
    for choice in choices:  # Not any(): this runs for every payload.
        if not isinstance(choice, dict) or choice.get("finish_reason") or "error" in choice:
            return False
    return True


def _is_keep_alive(payload: Json) -> bool:
    return payload.get("type") in KEEP_ALIVES or not any(payload.values())


def _message_of(value: Any, depth: int = 0) -> str:
    """The message in a value: a text, an error object, or a list of these. FastAPI's have the place of the error."""
    if isinstance(value, str):
        return value.strip()
    if depth < _MAX_MESSAGE_DEPTH and isinstance(value, list):
        return "; ".join(filter(None, (_message_of(item, depth + 1) for item in value)))
    if depth < _MAX_MESSAGE_DEPTH and isinstance(value, dict):
        message = next(filter(None, (_message_of(value.get(name), depth + 1) for name in _MESSAGE_NAMES)), "")
        where = ".".join(map(str, as_list(value.get("loc")))) or _message_of(value.get("loc"), depth + 1)
        return f"{where}: {message}" if where and message else message
    return ""


def _first_text(error: Json, names: list[str]) -> str | None:
    """The value of the first of these fields that is not empty, as text."""
    return next((str(error[name]) for name in names if error.get(name) not in (None, "")), None)
