"""Converts between llama-stack's values and those of the client: stop reasons, sampling options, log probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Literal

from ...reply.payloads import normal_reason
from ...schema.shapes import to_plain_json

Json = dict[str, Any]
StopReason = Literal["end_of_turn", "end_of_message", "out_of_tokens"]

# llama-stack maps these differently in different places; this one table replaces all its maps.
_STOP_REASONS: dict[str, StopReason] = {
    "stop": "end_of_turn",
    "eos": "end_of_turn",
    "eos_token": "end_of_turn",
    "eom": "end_of_message",
    "tool_calls": "end_of_message",
    "function_call": "end_of_message",
    "length": "out_of_tokens",
}


def stop_reason(raw: str | None) -> StopReason | None:
    """llama-stack's stop reason for a server's finish reason. An unknown reason is "end_of_turn".

    None means that there is no finish reason yet, or that the generation failed.
    """
    if raw is None or not raw.strip():
        return None
    word = raw.strip().lower()
    normal = normal_reason(word)
    return None if normal == "error" else _STOP_REASONS.get(word) or _STOP_REASONS.get(normal or "", "end_of_turn")


# The fields of each sampling strategy that become request fields.
_STRATEGIES = {"greedy": (), "top_p": ("temperature", "top_p"), "top_k": ("temperature", "top_k")}


def sampling_options(params: Any) -> Json:
    """The request fields for llama-stack's SamplingParams; none for None.

    Every field that is not None is sent, also one that llama-stack does not have, such as min_p and seed. A repetition
    penalty of 1 has no effect and is omitted.

    Raises:
        ValueError: The strategy is unknown.
    """
    fields = dict(fields_of(params)) if params is not None else {}
    strategy, penalty = fields_of(fields.pop("strategy", None) or {}), fields.pop("repetition_penalty", None)
    kind = str(strategy.get("type"))
    if strategy and kind not in _STRATEGIES:
        raise ValueError(f"unknown sampling strategy {kind!r}: use greedy, top_p or top_k")
    options: Json = {name: strategy.get(name) for name in _STRATEGIES.get(kind, ())}
    options.update(fields)
    if kind == "greedy":
        options["temperature"] = 0.0
    if penalty != 1.0:
        options["repeat_penalty"] = penalty
    return {name: value for name, value in options.items() if value is not None}


def completion_logprobs(logprobs: Mapping[str, Any] | None) -> list[dict[str, float]] | None:
    """A map of token to log probability for each position of a completion."""
    logprobs = logprobs or {}
    if logprobs.get("top_logprobs"):
        return [dict(position or {}) for position in logprobs["top_logprobs"]]
    tokens, values = logprobs.get("tokens"), logprobs.get("token_logprobs")
    return [{token: value} for token, value in zip(tokens, values)] if tokens and values else None


def streamed_logprobs(text: str, logprobs: Any) -> list[dict[str, float]] | None:
    """A map of token to log probability for each position of a piece of a streamed completion.

    Some servers send only a number, for the whole piece.
    """
    if isinstance(logprobs, (int, float)):
        return [{text: float(logprobs)}]
    return completion_logprobs(logprobs) if isinstance(logprobs, Mapping) else None


def chat_logprobs(items: Iterable[Any] | None) -> list[dict[str, float]] | None:
    """A map of token to log probability for each position of a chat response: the sampled token and alternatives."""
    positions = [
        {option["token"]: option["logprob"] for option in (*(item.get("top_logprobs") or ()), item)}
        for item in items or ()
        if isinstance(item, Mapping)
    ]
    return positions or None


# Objects


def fields_of(value: Any) -> Mapping[str, Any]:
    """The fields of a dict, a dataclass, a Pydantic model or any other object."""
    if isinstance(value, Mapping):
        return value
    try:
        fields = to_plain_json(value)
    except TypeError:
        fields = getattr(value, "__dict__", None)
    if not isinstance(fields, Mapping):
        raise ValueError(f"expected a dict, dataclass or Pydantic model, got {value!r}")
    return fields


def tool_name(name: Any) -> str:
    """The name of a tool. In llama-stack, built-in tools are members of an enum."""
    return str(name.value if isinstance(name, Enum) else name or "")
