"""The JSON of OpenAI's API, with the variants that other servers send: errors, finish reasons, usage. No I/O."""

from __future__ import annotations

import json
import re
from typing import Any

from ..errors import cut
from ..events import ErrorEvent, Usage

Json = dict[str, Any]

# Finish reasons of servers, by the five finish reasons of the client. Only their letters are compared, in lower case.
_REASONS = {
    word: reason
    for reason, words in {
        "stop": "stop endturn stopsequence eos eostoken eom complete completed load unload",
        "tool_calls": "toolcalls toolcall tooluse functioncall",
        "length": "compaction pauseturn repetition toomanytoolcalls",
        "content_filter": "spii",
    }.items()
    for word in words.split()
}
# The words in all other finish reasons, which say that the text was cut. The first that matches decides.
_CUT_REASONS = (
    ("content_filter", re.compile("filter|safety|recitation|refus|sensitive|block|prohibited|guardrail|moderat|toxic")),
    ("error", re.compile("error|abort|cancel|fail|malformed|unexpected|insufficient|timeout|ratelimit|quota")),
    ("length", re.compile("length|limit|max|context|exceed|budget|truncat|incomplete|notfinished|partial")),
)

# The fields of token counts, in the order of their precedence. A zero does not hide a count in a later field.
_INPUT_NAMES = "prompt_tokens input_tokens prompt_eval_count"
_OUTPUT_NAMES = "completion_tokens output_tokens eval_count"
_CACHED_NAMES = (
    "prompt_tokens_details.cached_tokens input_tokens_details.cached_tokens prompt_cache_hit_tokens "
    "cache_read_input_tokens cached_tokens"
)
_REASONING_NAMES = "completion_tokens_details.reasoning_tokens output_tokens_details.reasoning_tokens reasoning_tokens"


# The names under which servers report an error, in lower case, without underscores: `error`, `errors`, `error_msg`,
# `errCode`, `exception`. `base_resp` is MiniMax's status.
_ERROR_NAME = re.compile(r"err(or|no|code|msg|message|$)|exception|fault$|failure|baseresp$")
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
]
_CODE_NAMES = ["code", "error_code", "errorCode", "errCode", "errcode", "status_code", "statusCode"]
_TYPE_NAMES = ["type", "error_type", "errorType"]


def parse_error(body: Any) -> ErrorEvent:
    """Parse the error in a body, text or parsed JSON of any format. An unknown body becomes the message, cut."""
    if isinstance(body, str):
        try:
            parsed = json.loads(body)
        except (ValueError, RecursionError):
            return ErrorEvent(cut(body) or "no reason given", raw=body)
        return ErrorEvent(cut(parsed), raw=body) if isinstance(parsed, str) else parse_error(parsed)
    outer = body[0] if isinstance(body, list) and body else body
    outer = outer if isinstance(outer, dict) else {"error": outer}
    inner = outer.get("error") or outer.get("errors") or outer.get("base_resp") or outer
    if isinstance(inner, list) and len(inner) == 1:
        inner = inner[0]
    if not isinstance(inner, dict):
        inner = {**outer, "message": inner if isinstance(inner, str) else dump(inner)}
    message = _error_message(inner) or _error_message(outer) or cut(dump(body))
    kind, code, param = (_first_text(inner, names) for names in (_TYPE_NAMES, _CODE_NAMES, ["param"]))
    return ErrorEvent(message, kind, code, param, raw=body)


def find_error(payload: Json) -> Any:
    """The error that a payload reports, in `error`, also of a choice or `x_groq`, or by its fields; else None."""
    choices = payload.get("choices")
    for place in (payload, *(choices if isinstance(choices, list) else ()), payload.get("x_groq")):
        error = place.get("error") if isinstance(place, dict) else None
        if _is_error(error):
            return error
    if names_error(payload):
        return payload
    # Some services send a code of success with every payload.
    if choices or str(payload.get("code", payload.get("statusCode"))) in ("0", "200"):
        return None
    is_error = non_blank(payload.get("message")) is not None
    is_error = is_error or any(payload.get(name) not in (None, "") for name in ("detail", "code", "statusCode"))
    return payload if is_error else None


def names_error(payload: Json) -> bool:
    """Whether a payload reports an error by the name of a field, or in `type` or the like."""
    if any(payload.get(name) in ("error", "failed") for name in ("object", "type", "event", "status")):
        return True
    return any(
        _ERROR_NAME.match(name.replace("_", "").replace("-", "").lower()) and _is_error(value)
        for name, value in payload.items()
    )


def _is_error(value: Any) -> bool:
    """Whether the value of a field for errors reports one. An object with empty fields alone reports none."""
    if isinstance(value, dict):
        codes = [value[name] for name in _CODE_NAMES if name in value]
        fields = [item for name, item in value.items() if name not in _CODE_NAMES]
        return any(map(_is_error, codes)) if codes and value.keys() & {"status_code"} else any([*fields, *codes])
    if isinstance(value, list):
        return bool(value)
    return str(value).strip().lower() not in _SUCCESS


# The fields of which a payload without an error has at least one, besides its name and the model.
_CHUNK_NAMES = frozenset(
    ["choices", "usage", "message", "done", "response", "timings", "prompt_progress", "x_groq", "sglext", "thought"]
)
# The fields that describe a response. A payload that has only these is a part of it as well.
_LABEL_NAMES = frozenset(
    ["id", "object", "created", "model", "system_fingerprint", "service_tier", "provider", "obfuscation"]
)
_KEEP_ALIVES = ("ping", "heartbeat", "keepalive", "keep-alive")


def is_chunk(payload: Json) -> bool:
    """Whether a payload is a part of a response, by its fields. A payload with an id alone may report anything."""
    is_named = str(payload.get("object")).startswith(("chat.completion", "text_completion"))
    return is_named or not _CHUNK_NAMES.isdisjoint(payload) or (bool(payload) and payload.keys() <= _LABEL_NAMES)


# The fields of nearly all payloads of a stream.
_PLAIN_FIELDS = frozenset({*_LABEL_NAMES, "choices", "usage", "timings"})


def is_plain_chunk(payload: Json) -> bool:
    """Whether a payload is, by the names of its fields, a chunk of a stream without an error and without an end."""
    choices = payload.get("choices")
    if not isinstance(choices, list) or not payload.keys() <= _PLAIN_FIELDS or payload.get("object") == "error":
        return False
    for choice in choices:  # Not any(): this runs for every payload.
        if not isinstance(choice, dict) or choice.get("finish_reason") or "error" in choice:
            return False
    return True


def reports_error(payload: Json) -> bool:
    """Whether a payload reports an error, also by a finish reason, or is no part of a response and may report one."""
    reasons = (choice.get("finish_reason") for choice in as_list(payload.get("choices")) if isinstance(choice, dict))
    if any(reason and normal_reason(str(reason)) == "error" for reason in reasons):
        return True
    return find_error(payload) is not None or not is_chunk(payload)


def is_keep_alive(payload: Json) -> bool:
    return payload.get("type") in _KEEP_ALIVES or not any(payload.values())


def _error_message(error: Json) -> str:
    """The message of an error object. FastAPI has it in `detail`, as text or as a list of validation errors."""
    for name in _MESSAGE_NAMES:
        value = error.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
        if isinstance(value, list):
            return "; ".join(_validation_error(item) for item in value)
    return ""


def _first_text(error: Json, names: list[str]) -> str | None:
    """The value of the first of these fields that is not empty, as text."""
    return next((str(error[name]) for name in names if error.get(name) not in (None, "")), None)


def _validation_error(item: Any) -> str:
    if not isinstance(item, dict):
        return str(item)
    steps = item.get("loc") or ()
    where = ".".join(map(str, steps if isinstance(steps, (list, tuple)) else [steps]))
    return f"{where}: {item.get('msg')}" if where else str(item.get("msg"))


def dump(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:  # JSON can be parsed at a depth at which it cannot be written.
        return "JSON that is nested too deeply"


def normal_reason(raw: str) -> str | None:
    """The client's name for a finish reason of a server; None if it is unknown."""
    letters = re.sub("[^a-z]", "", raw.lower())
    cuts = (reason for reason, words in _CUT_REASONS if words.search(letters))
    return _REASONS.get(letters) or next(cuts, None)


def find_usage(chunk: Json) -> Usage | None:
    """The usage of a payload: at the top, in `x_groq` (Groq), in a choice (Moonshot), or the whole payload (Ollama)."""
    found: Usage | None = None
    places = as_list(chunk.get("choices"))
    if "usage" in chunk or "x_groq" in chunk:
        places = [chunk, chunk.get("x_groq"), *places]
    for place in places:
        usage = place.get("usage") if isinstance(place, dict) else None
        if usage and isinstance(usage, dict) and (found is None or not found.total_tokens):
            found = _parse_usage(usage)
    is_usage = found is None and ("eval_count" in chunk or "prompt_eval_count" in chunk)
    return _parse_usage(chunk) if is_usage else found


def _parse_usage(raw: Json) -> Usage:
    n_input, n_output = _count(raw, _INPUT_NAMES) or 0, _count(raw, _OUTPUT_NAMES) or 0
    n_cached, n_reasoning = _count(raw, _CACHED_NAMES), _count(raw, _REASONING_NAMES)
    return Usage(n_input, n_output, _count(raw, "total_tokens") or n_input + n_output, n_cached, n_reasoning, raw)


def _count(raw: Json, names: str) -> int | None:
    """The first non-zero count in these fields; 0 if all counts are zero, None if there is none."""
    found = None
    for name in names.split():
        value: Any = raw
        for step in name.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        number = as_integer(value)
        if number:
            return number
        found = number if found is None else found
    return found


def as_integer(value: Any) -> int | None:
    """An integer that a server may write as 1, 1.0 or "1"; None for NaN, infinity and anything else."""
    if value is None or isinstance(value, bool):
        return None
    try:
        return int(value)
    except (ValueError, TypeError, OverflowError):
        return None


def as_list(value: Any) -> list[Any]:
    """The list; an object (which some servers send in place of a list of one) as a list of one; else an empty list."""
    if isinstance(value, list):
        return value
    return [value] if isinstance(value, dict) else []


def non_blank(value: Any) -> str | None:
    """The text if it is not blank, else None: some servers send "" in place of null."""
    return value if isinstance(value, str) and value.strip() else None
