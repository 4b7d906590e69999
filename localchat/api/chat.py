"""POST /v1/chat/completions, the request: a JSON body becomes a ChatRequest, or a BadRequest.

Every check that needs no model is here. What the answer looks like is in reply.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional, Union

from .errors import BadRequest
from .fields import Members, parse_body, show

# As OpenAI's own limits, but for n, which is bounded by what one machine runs at a time.
MAX_TOP_LOGPROBS = 20
MAX_N = 32
MAX_TOKEN_ID_DIGITS = 10
# Each stop text is looked for at each token.
MAX_STOPS = 64

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_INT32 = 2**31 - 1

# Number members that go to the sampler as they are: kind, lowest, highest. Explicit zeros count (G3).
_SAMPLING: dict[str, tuple[type, Optional[float], Optional[float]]] = {
    "temperature": (float, 0, 100),
    "top_p": (float, 0, 1),
    "top_k": (int, -1, _INT32),
    "min_p": (float, 0, 1),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
    "repeat_penalty": (float, 0.01, 100),
    "repetition_penalty": (float, 0.01, 100),
    "seed": (int, -(2**63), 2**64 - 1),
}

# Other names for the same, and values that stand for "off" or "draw one" elsewhere (K42).
_ALIASES = {"repetition_penalty": "repeat_penalty"}

# Members that mean something which this server does not do yet, and their values that ask for nothing.
# Ignoring them would give an answer that looks right and is not.
_NOT_YET: dict[str, tuple[Any, ...]] = {
    "response_format": ({"type": "text"},),
    "json_schema": (),
    "grammar": ("",),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "response_prefix": ("",),
    "echo": (False,),
    "chat_template": (),
    "documents": ([],),
}

# Members that have no effect here and never need one: --strict lets them pass.
_WITHOUT_EFFECT = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "verbosity", "modalities",
)  # fmt: skip


@dataclass(frozen=True)
class ChatRequest:
    """What a caller asked for, checked. None, and a name missing in `sampling`, mean "not said".

    `messages` and `tools` are JSON values in the form that templates expect: content is text or missing,
    and no member is null (T28). `tool_choice` is "none" or "auto". `top_logprobs` is None without
    `logprobs: true`. `unknown` names the members that were ignored (K10).
    """

    model: str
    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str = "none"
    parallel_tool_calls: bool = True
    template_vars: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Union[int, float]] = field(default_factory=dict)
    logit_bias: tuple[tuple[int, float], ...] = ()
    max_tokens: Optional[int] = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    top_logprobs: Optional[int] = None
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    unknown: tuple[str, ...] = ()


def parse_chat(raw: bytes, *, strict: bool = False) -> ChatRequest:
    """The request in a body. With `strict` an unknown member is an error too (K10).

    Raises:
        BadRequest: Anything is not as it should be.
    """
    body = parse_body(raw)
    _refuse_not_yet(body)
    tools = _tools(body)
    return ChatRequest(
        model=body.text("model") or "",
        messages=_messages(body),
        tools=tools,
        tool_choice=_tool_choice(body, tools),
        parallel_tool_calls=body.boolean("parallel_tool_calls") is not False,
        template_vars=_template_vars(body),
        sampling=_sampling(body),
        logit_bias=_logit_bias(body),
        max_tokens=_max_tokens(body),
        stop=_stop(body),
        stop_token_ids=body.integers("stop_token_ids", 0),
        top_logprobs=_top_logprobs(body),
        n=body.integer("n", 1, MAX_N) or 1,
        stream=body.boolean("stream") or False,
        include_usage=_include_usage(body),
        # Last, since what was not read by now is unknown.
        unknown=_unknown(body, strict),
    )


def _refuse_not_yet(body: Members) -> None:
    for name, harmless in _NOT_YET.items():
        value = body.get(name)
        if value is not None and value not in harmless:
            raise BadRequest(f"'{name}' is not supported yet: leave it out (got {show(value)})", name)


def _unknown(body: Members, strict: bool) -> tuple[str, ...]:
    unknown = tuple(name for name in body.unknown() if name not in _WITHOUT_EFFECT)
    if strict and unknown:
        raise BadRequest(f"'{unknown[0]}' is not known here, and --strict refuses what is not", unknown[0])
    return unknown


def _sampling(body: Members) -> dict[str, Union[int, float]]:
    values: dict[str, Union[int, float]] = {}
    for name, (kind, low, high) in _SAMPLING.items():
        value = body.integer(name, low, high) if kind is int else body.number(name, low, high)
        if value is not None:
            values[_ALIASES.get(name, name)] = value
    # -1 elsewhere means "all tokens" and "any seed".
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if values.get("seed") == -1:
        del values["seed"]
    return values


def _max_tokens(body: Members) -> Optional[int]:
    """K41: the newer name wins over its alias."""
    older = body.integer("max_tokens", 1)
    newer = body.integer("max_completion_tokens", 1)
    return older if newer is None else newer


def _stop(body: Members) -> tuple[str, ...]:
    """K11: a text or a list of texts; a blank one would end every answer at once."""
    value = body.get("stop")
    stops = [value] if isinstance(value, str) else body.items("stop", "strings")
    if len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        body.refuse("stop", f"a string or a list of at most {MAX_STOPS} strings, none of them empty")
    return tuple(stops)


def _logit_bias(body: Members) -> tuple[tuple[int, float], ...]:
    biases = body.object("logit_bias")
    if biases is None:
        return ()
    for token in biases.raw:
        if not (token.isascii() and token.isdigit() and len(token) <= MAX_TOKEN_ID_DIGITS):
            raise BadRequest(f"the names in 'logit_bias' must be token ids, got {show(token)}", "logit_bias")
    return tuple((int(token), biases.number(token, -100, 100) or 0.0) for token in biases.raw)


def _top_logprobs(body: Members) -> Optional[int]:
    """K26: `logprobs: true` alone asks for the drawn tokens."""
    wanted = body.boolean("logprobs")
    top = body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not wanted:
        raise BadRequest(f"'top_logprobs' is {top}, which needs 'logprobs' to be true", "top_logprobs")
    return (top or 0) if wanted else None


def _include_usage(body: Members) -> bool:
    options = body.object("stream_options")
    return options is not None and options.boolean("include_usage") is True


def _template_vars(body: Members) -> dict[str, Any]:
    """K30: both names for free variables, then those that have members of their own."""
    variables: dict[str, Any] = {}
    for name in ("template_vars", "chat_template_kwargs"):
        given = body.object(name)
        variables.update(given.raw if given else {})
    thinking, effort = body.boolean("enable_thinking"), body.text("reasoning_effort")
    return {**variables, **_without_nulls({"enable_thinking": thinking, "reasoning_effort": effort})}


def _tools(body: Members) -> tuple[dict[str, Any], ...]:
    return tuple(_tool(tool) for tool in body.objects("tools"))


def _tool(tool: Members) -> dict[str, Any]:
    tool.choice("type", ("function",))
    function = tool.object("function")
    if function is None:
        tool.refuse("function", "an object")
    if not function.text("name"):
        function.refuse("name", "a string that is not empty")
    function.text("description")
    function.object("parameters")
    return {"type": "function", "function": _without_nulls(function.raw)}


def _tool_choice(body: Members, tools: tuple[dict[str, Any], ...]) -> str:
    """K21: absent is "auto" where there are tools; what cannot be done at all is an error."""
    value = body.get("tool_choice")
    if isinstance(value, dict):
        mode, name = "required", _chosen_name(body)
    else:
        mode, name = body.choice("tool_choice", ("none", "auto", "required")) or "auto", None
    offered = [tool["function"]["name"] for tool in tools]
    if mode == "required" and not offered:
        raise BadRequest(f"'tool_choice' is {show(value)}, which needs 'tools'", "tool_choice")
    if name is not None and name not in offered:
        raise BadRequest(f"'tool_choice' names \"{name}\"; 'tools' offers {show(offered)}", "tool_choice")
    if mode == "required":
        raise BadRequest(
            f"'tool_choice' {show(value)} is not supported yet, as a call cannot be guaranteed: use \"auto\"",
            "tool_choice",
        )
    return mode if offered else "none"


def _chosen_name(body: Members) -> str:
    choice = body.object("tool_choice")
    function = choice.object("function") if choice else None
    name = function.text("name") if function else None
    if not name:
        body.refuse("tool_choice", 'a mode or {"type": "function", "function": {"name": ...}}')
    return name


def _messages(body: Members) -> tuple[dict[str, Any], ...]:
    messages = tuple(_message(message) for message in body.objects("messages"))
    if not messages:
        body.refuse("messages", "a list with at least one message")
    return messages


def _message(message: Members) -> dict[str, Any]:
    role = message.choice("role", _ROLES)
    if role is None:
        message.refuse("role", "one of " + ", ".join(f'"{role}"' for role in _ROLES))
    content = _content(message)
    if content is None and role != "assistant":
        message.refuse("content", "a string or a list of parts")
    texts = {name: message.text(name) for name in ("name", "tool_call_id", "reasoning_content")}
    calls = [_tool_call(call) for call in message.objects("tool_calls")]
    return _without_nulls({"role": role, "content": content, **texts, "tool_calls": calls or None})


def _content(message: Members) -> Optional[str]:
    """K25: text parts are joined with nothing between them."""
    value = message.get("content")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        message.refuse("content", "a string or a list of parts")
    return "".join(_part_text(part) for part in message.objects("content"))


def _part_text(part: Members) -> str:
    kind = part.text("type")
    if kind is None:
        part.refuse("type", '"text"')
    if kind not in ("text", "refusal"):
        raise BadRequest(f"'{part.path}' is of type {show(kind)}; this server reads only text", part.path)
    text = part.text(kind)
    if text is None:
        part.refuse(kind, "a string")
    return text


def _tool_call(call: Members) -> dict[str, Any]:
    """A call in the history. Its arguments stay as they came, text or object (T29 is the template's work)."""
    call.choice("type", ("function",))
    function = call.object("function")
    if function is None:
        call.refuse("function", "an object")
    name = function.text("name")
    if not name:
        function.refuse("name", "a string that is not empty")
    arguments = function.get("arguments")
    if arguments is not None and not isinstance(arguments, (str, dict)):
        function.refuse("arguments", "JSON text or an object")
    function_value = {"name": name, "arguments": "{}" if arguments is None else arguments}
    return _without_nulls({"id": call.text("id"), "type": "function", "function": function_value})


def _without_nulls(raw: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if value is not None}
