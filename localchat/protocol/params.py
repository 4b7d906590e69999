"""How an answer is drawn and where it ends: the members that all requests for text have in common.

Knows their names, aliases and ranges. What needs a vocabulary (texts to bias, ids that exist) is left to
who has one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from .errors import BadRequest
from .fields import DECODER, Members, refuse_unsupported, show

# Each stop text is looked for at each token.
MAX_STOPS = 64
MAX_BREAKERS = 64
MAX_TOKEN_ID_DIGITS = 10
# As OpenAI's own limit.
MAX_TOP_LOGPROBS = 20

_INT32 = 2**31 - 1

# Numbers for the sampler: kind, lowest, highest. Explicit zeros count (G3).
NUMBERS: Mapping[str, tuple[type, float, float]] = {
    "temperature": (float, 0, 100),
    "dynatemp_range": (float, 0, 100),
    "dynatemp_exponent": (float, 0, 100),
    "top_k": (int, -1, _INT32),
    "top_p": (float, 0, 1),
    "min_p": (float, 0, 1),
    "typical_p": (float, 0, 1),
    "top_n_sigma": (float, -1, 1000),
    "xtc_probability": (float, 0, 1),
    "xtc_threshold": (float, 0, 1),
    "repeat_penalty": (float, 0.01, 100),
    "presence_penalty": (float, -2, 2),
    "frequency_penalty": (float, -2, 2),
    "penalty_last_n": (int, -1, _INT32),
    "dry_multiplier": (float, 0, 100),
    "dry_base": (float, 1, 100),
    "dry_allowed_length": (int, 0, _INT32),
    "dry_penalty_last_n": (int, -1, _INT32),
    "mirostat": (int, 0, 2),
    "mirostat_tau": (float, 0, 100),
    "mirostat_eta": (float, 0, 100),
    "adaptive_target": (float, -1, 1),
    "adaptive_decay": (float, 0, 0.99),
    "min_keep": (int, 0, _INT32),
    "seed": (int, -(2**63), 2**64 - 1),
}

# What other servers call the same (K42). The name above wins where both are given.
_ALIASES: Mapping[str, str] = {
    "repetition_penalty": "repeat_penalty",
    "repeat_last_n": "penalty_last_n",
    "penalty_range": "penalty_last_n",
    "typical": "typical_p",
    "typ_p": "typical_p",
    "nsigma": "top_n_sigma",
    "dry_range": "dry_penalty_last_n",
    "mirostat_mode": "mirostat",
}

# The steps of the chain by every name, and by llama.cpp's letters.
_STEPS: Mapping[str, str] = {
    "penalties": "penalties",
    "dry": "dry",
    "top_n_sigma": "top_n_sigma",
    "top_k": "top_k",
    "typical_p": "typical_p",
    "typ_p": "typical_p",
    "typical": "typical_p",
    "top_p": "top_p",
    "min_p": "min_p",
    "xtc": "xtc",
    "temperature": "temperature",
    "temp": "temperature",
    "adaptive_p": "adaptive_p",
}
_LETTERS: Mapping[str, str] = {
    "e": "penalties",
    "d": "dry",
    "s": "top_n_sigma",
    "k": "top_k",
    "y": "typical_p",
    "p": "top_p",
    "m": "min_p",
    "x": "xtc",
    "t": "temperature",
    "a": "adaptive_p",
}

# Not a step among others but the draw, wherever it stands; its target says whether it is on.
_DRAW = "adaptive_p"

# Names of the length limit, the first one given wins (K41). The last is llama.cpp's own: it has -1 for "no limit".
_LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict")

# Members that change what is drawn, in ways that this server does not have, and their values that change nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "n_indent": (0,),
    "lora": ([],),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1, 1.0),
}

# Members that have no effect on the answer here and never need one: --strict lets them pass.
WITHOUT_EFFECT = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "verbosity", "prediction", "priority", "cache_prompt", "id_slot", "n_keep",
    "n_discard", "n_cache_reuse", "backend_sampling", "response_fields", "add_special_tokens", "verbose",
)  # fmt: skip

# A token to make likelier or not, by its id or as the tokens of a text.
Bias = tuple[Union[int, str], float]


@dataclass(frozen=True)
class Drawing:
    """What a caller said about drawing. None, and a name missing in `sampling`, mean "not said".

    The names in `sampling` are those of the engine's Sampling; a seed of None there is any. A bias of minus
    infinity bans a token. `top_logprobs` is None where no log probabilities are wanted; with `after_sampling`
    they are wanted as probabilities, of what was drawn from. `prompt_logprobs` asks the same, as logarithms, of
    the prompt's tokens. `max_tokens` 0 wants nothing but the prompt read. `max_completion_s` is llama.cpp's limit
    of time, for editors. Of a longer prompt only the last `n_prompt_kept` tokens are read; 0 stands for all (V9).
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    logit_bias: tuple[Bias, ...] = ()
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    top_logprobs: int | None = None
    after_sampling: bool = False
    prompt_logprobs: int | None = None
    max_completion_s: float | None = None
    n_prompt_kept: int = 0


def read_drawing(body: Members, *, least: int = 1) -> dict[str, Any]:
    """The members of a Drawing but `top_logprobs`, which each API asks for in its own way.

    `least` is the smallest limit of an answer: 0 where a prompt may be read for its own sake.

    Raises:
        BadRequest: One of them is not as it should be.
    """
    refuse_unsupported(body, UNSUPPORTED)
    max_tokens = _max_tokens(body, least)
    return {
        "sampling": read_sampling(body),
        "logit_bias": _logit_bias(body),
        "max_tokens": max_tokens,
        "min_tokens": _min_tokens(body, max_tokens),
        "stop": _stop(body),
        "stop_token_ids": body.integers("stop_token_ids", 0),
        "ignore_eos": body.boolean("ignore_eos") or False,
        "after_sampling": body.boolean("post_sampling_probs") or False,
        "prompt_logprobs": _prompt_logprobs(body),
        "max_completion_s": _max_completion_s(body),
        # -1 stands for what the model can hold: a longer prompt is an error that says so.
        "n_prompt_kept": max(body.integer("truncate_prompt_tokens", -1) or 0, 0),
    }


def read_sampling(body: Members) -> dict[str, Any]:
    """The values for the sampler, under the engine's names."""
    values: dict[str, Any] = {}
    for name, known in (*_ALIASES.items(), *((name, name) for name in NUMBERS)):
        kind, low, high = NUMBERS[known]
        value = body.integer(name, low, high) if kind is int else body.number(name, low, high)
        if value is not None:
            values[known] = value
    # -1 elsewhere means "all tokens" and "any seed".
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if values.get("seed") == -1:
        values["seed"] = None
    lists = {"samplers": _samplers(body), "dry_sequence_breakers": _breakers(body)}
    return {**values, **{name: value for name, value in lists.items() if value is not None}}


def parse_default(text: str) -> dict[str, Any]:
    """A sampling value as NAME=VALUE, in the words of a request, for a command line (K9).

    Raises:
        BadRequest: There is no such member, or it cannot have this value.
    """
    name, _, value = text.partition("=")
    body = Members({name: _json_or_text(value)})
    values = read_sampling(body)
    if body.unknown():
        known = ", ".join((*NUMBERS, "samplers", "dry_sequence_breakers"))
        raise BadRequest(f"'{name}' is no sampling value; these are: {known}", name)
    return values


def _max_tokens(body: Members, least: int) -> int | None:
    given = [body.integer(name, -1 if name == "n_predict" else least) for name in _LENGTHS]
    first = next((value for value in given if value is not None), None)
    if first == 0 and least > 0:
        body.refuse("n_predict", "an integer of at least 1, or -1 for no limit")
    return None if first == -1 else first


def _prompt_logprobs(body: Members) -> int | None:
    """V44: a list of all the prompt, which no chunk has."""
    wanted = body.integer("prompt_logprobs", 0, MAX_TOP_LOGPROBS)
    if not body.boolean("stream"):
        return wanted
    if wanted:
        raise BadRequest("'prompt_logprobs' cannot be streamed: leave out one of both", "prompt_logprobs")
    return None


def _max_completion_s(body: Members) -> float | None:
    milliseconds = body.number("t_max_predict_ms", -1)
    return milliseconds / 1000 if milliseconds and milliseconds > 0 else None


def _min_tokens(body: Members, max_tokens: int | None) -> int:
    least = body.integer("min_tokens", 0) or 0
    if max_tokens is not None and least > max_tokens:
        raise BadRequest(f"'min_tokens' is {least}, and the limit of the answer is {max_tokens}", "min_tokens")
    return least


def _stop(body: Members) -> tuple[str, ...]:
    """K11: a text or a list of texts; a blank one would end every answer at once."""
    value = body.get("stop")
    stops = [value] if isinstance(value, str) else body.items("stop", "strings")
    if not _are_texts(stops, MAX_STOPS):
        body.refuse("stop", f"a string or a list of at most {MAX_STOPS} strings, none of them empty")
    return tuple(stops)


def _samplers(body: Members) -> tuple[str, ...] | None:
    value = body.get("samplers")
    if value is None:
        return None
    names = _LETTERS if isinstance(value, str) else _STEPS
    given: list[Any] = list(value) if isinstance(value, (str, list)) else [None]
    if not all(isinstance(name, str) and name in names for name in given):
        steps = ", ".join(dict.fromkeys(_STEPS.values()))
        body.refuse("samplers", f"a list of {steps}, or letters of {''.join(_LETTERS)}")
    steps_given = [names[name] for name in given]
    if len(set(steps_given)) < len(steps_given):
        body.refuse("samplers", "a list without repetitions")
    return tuple(step for step in steps_given if step != _DRAW)


def _breakers(body: Members) -> tuple[str, ...] | None:
    if body.get("dry_sequence_breakers") is None:
        return None
    values = body.items("dry_sequence_breakers", "strings")
    if not values or not _are_texts(values, MAX_BREAKERS):
        body.refuse("dry_sequence_breakers", f"a list of 1 to {MAX_BREAKERS} strings, none of them empty")
    return tuple(values)


def _are_texts(values: list[Any], most: int) -> bool:
    # A NUL would end the text in C, and then it would be another one.
    return len(values) <= most and all(isinstance(v, str) and v and "\0" not in v for v in values)


def _logit_bias(body: Members) -> tuple[Bias, ...]:
    """OpenAI's map of token ids, the same with texts, or a list of pairs; `false` bans a token."""
    value = body.get("logit_bias")
    if isinstance(value, list):
        return tuple(_listed_bias(pair, f"logit_bias[{i}]") for i, pair in enumerate(value))
    biases = body.object("logit_bias")
    if biases is None:
        return ()
    return tuple((_token_or_text(token), _bias(biases.raw[token], biases.at(token))) for token in biases.raw)


def _listed_bias(pair: Any, path: str) -> Bias:
    if not isinstance(pair, list) or len(pair) != 2:
        raise BadRequest(f"'{path}' must be a pair of a token and its bias, got {show(pair)}", path)
    token, bias = pair
    if isinstance(token, str) and token:
        return token, _bias(bias, path)
    if isinstance(token, int) and not isinstance(token, bool) and token >= 0:
        return token, _bias(bias, path)
    raise BadRequest(f"'{path}' must begin with a token id or a text, got {show(token)}", path)


def _token_or_text(name: str) -> int | str:
    if not name:
        raise BadRequest("the names in 'logit_bias' must be token ids or texts, got an empty one", "logit_bias")
    if not (name.isascii() and name.isdigit()):
        return name
    if len(name) > MAX_TOKEN_ID_DIGITS:
        raise BadRequest(f"the token id {show(name)} in 'logit_bias' is too large", "logit_bias")
    return int(name)


def _bias(value: Any, path: str) -> float:
    if value is False:
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -100 <= value <= 100:
        raise BadRequest(f"'{path}' must be a number from -100 to 100, or false for never, got {show(value)}", path)
    return float(value)


def _json_or_text(text: str) -> Any:
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return text
