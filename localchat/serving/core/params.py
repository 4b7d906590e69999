"""Sampling and generation parameters: each name, its aliases, range, default and meaning, declared once.

`SamplingParams` has the values of the sampler chain, `GenerationParams` the limits and extra outputs of a generation.
The parsers of all wire interfaces, `--default NAME=VALUE` and the engine use these declarations. Checks that need a
vocabulary (token ids, texts in `logit_bias`) are in chat/model.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Union

from .errors import BadRequest, field_error
from .fields import Fields, first_given, refuse_unsupported, show
from .text import decode_json

# The limits of stop texts, and of the length of each: they are compared with the end of the output after every token,
# on the thread that writes all streams.
MAX_STOPS, MAX_STOP_CHARS = 64, 1000
MAX_LISTED_TOKENS = 4096  # The limit of token ids in a list, and of biases: each is searched for at every token.
MAX_TOKEN_ID_DIGITS = 10
MAX_TOP_LOGPROBS = 20  # OpenAI's limit.

_INT32 = 2**31 - 1
_MAX_SCALE = 1000  # Of an adapter, far above all that are used.


@dataclass(frozen=True)
class Number:
    """Reads a number, an int or a float, from a request body. `aliases` are the names of the field in other servers."""

    kind: type
    low: float
    high: float | None = None  # None: no limit.
    aliases: tuple[str, ...] = ()

    def __call__(self, body: Fields, name: str) -> float | int | None:
        read = body.integer if self.kind is int else body.number
        # All names are validated; the field's own name takes precedence.
        return first_given([read(alias, self.low, self.high) for alias in (name, *self.aliases)])


def _float(default: float, low: float, high: float, *aliases: str) -> Any:
    return field(default=default, metadata={"read": Number(float, low, high, aliases)})


def _int(default: int | None, low: float, high: float | None, *aliases: str) -> Any:
    return field(default=default, metadata={"read": Number(int, low, high, aliases)})


def _read_by(reader: Callable[[Fields, str], Any], default: Any) -> Any:
    """A field with its own reader, which returns None if the request leaves the field out."""
    return field(default=default, metadata={"read": reader})


SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature")
"""The samplers of a chain, in llama.cpp's order. After top_k, all later samplers have few tokens to process."""

# The samplers by name and alias. adaptive_p chooses the token, so it is the last one, if `adaptive_target` is set.
_LAST_SAMPLER = "adaptive_p"
_REMOVED_SAMPLER = "tfs_z"  # Older presets of programs have its name. llama.cpp has removed it.
_NAMES: Mapping[str, str] = {
    **{name: name for name in (*SAMPLERS, "infill", _LAST_SAMPLER)},
    "typ_p": "typical_p", "typical": "typical_p", "temp": "temperature",
}  # fmt: skip

# A token id or a text (which stands for its tokens), and the value that is added to the logits.
Bias = tuple[Union[int, str], float]


def _samplers(body: Fields, name: str) -> tuple[str, ...] | None:
    if body.get(name) is None:
        return None
    listed = [item for item in body.items(name, "samplers") if item != _REMOVED_SAMPLER]
    if not all(isinstance(item, str) and item in _NAMES for item in listed):
        body.refuse(name, f"a list of {', '.join(dict.fromkeys(_NAMES.values()))}")
    chosen = [_NAMES[item] for item in listed]
    if len(set(chosen)) < len(chosen):
        body.refuse(name, "a list without repetitions")
    return tuple(sampler for sampler in chosen if sampler != _LAST_SAMPLER)


def _texts(body: Fields, name: str) -> tuple[str, ...]:
    """A text or a list of texts. Empty ones are left out: programs send them for none."""
    value = body.get(name)
    texts = [value] if isinstance(value, str) else body.items(name, "strings")
    if len(texts) > MAX_STOPS or not all(isinstance(text, str) for text in texts):
        body.refuse(name, f"a string or a list of at most {MAX_STOPS} strings")
    texts = list(filter(None, texts))
    for text in texts:
        if "\0" in text:  # It would end the text in llama.cpp.
            raise field_error(body.at(name), f"has a text with a NUL character, {show(text)}: remove the character")
    n_chars = max(map(len, texts), default=0)
    if n_chars > MAX_STOP_CHARS:
        raise field_error(body.at(name), f"has a text of {n_chars} characters, the limit is {MAX_STOP_CHARS}")
    return tuple(texts)


def _breakers(body: Fields, name: str) -> tuple[str, ...] | None:
    value = body.get(name)
    if value is not None and not (isinstance(value, list) and value and all(value)):
        body.refuse(name, f"a list of 1 to {MAX_STOPS} strings, none of them empty")
    return _texts(body, name) or None


def _logit_bias(body: Fields, name: str) -> tuple[Bias, ...]:
    """OpenAI's map from token ids to biases, the same with texts, or a list of pairs. `false` bans a token."""
    value, path = body.get(name), body.at(name)
    if isinstance(value, (dict, list)) and len(value) > MAX_LISTED_TOKENS:
        raise field_error(path, f"has {len(value)} biases, the limit is {MAX_LISTED_TOKENS}")
    if isinstance(value, dict):
        return tuple(_bias([_token_or_text(key, path), bias], f"{path}.{key}") for key, bias in value.items())
    return tuple(_bias(pair, f"{path}[{i}]") for i, pair in enumerate(body.items(name, "pairs")))


def _token_or_text(key: str, path: str) -> int | str:
    if not (key.isascii() and key.isdigit()):
        return key
    if len(key) > MAX_TOKEN_ID_DIGITS:
        raise BadRequest(f"the token id {show(key)} in '{path}' is too large", path)
    return int(key)


def _bias(pair: Any, path: str) -> Bias:
    if not (
        isinstance(pair, list) and len(pair) == 2 and (is_token(pair[0]) or (pair[0] and isinstance(pair[0], str)))
    ):
        raise field_error(path, f"must be a token id or a text, and its bias, got {show(pair)}")
    token, bias = pair
    if bias is False:
        return token, -math.inf
    if isinstance(bias, bool) or not isinstance(bias, (int, float)) or not -100 <= bias <= 100:
        raise field_error(path, f"must be a number from -100 to 100, or false for never, got {show(bias)}")
    return token, float(bias)


def _milliseconds(body: Fields, name: str) -> float | None:
    value = body.number(name, -1)
    return value if value and value > 0 else None


def _token_ids(body: Fields, name: str) -> tuple[int, ...]:
    values = body.items(name, "integers")
    if len(values) > MAX_LISTED_TOKENS or not all(map(is_token, values)):
        body.refuse(name, f"a list of at most {MAX_LISTED_TOKENS} integers of at least 0")
    return tuple(values)


def _lora(body: Fields, name: str) -> tuple[tuple[int, float], ...] | None:
    """llama.cpp's list of adapters, by their ids, with their scales. Those that are not in it have the scale 0."""
    if body.get(name) is None:
        return None
    scales: dict[int, float] = {}
    for adapter in body.objects(name):
        id, scale = adapter.integer("id", 0, _INT32), adapter.number("scale", -_MAX_SCALE, _MAX_SCALE)
        if id is None or scale is None:
            adapter.refuse("id" if id is None else "scale", "a number")
        scales[id] = scale
    return tuple(scales.items())


def _n_kept(body: Fields, name: str) -> int:
    # 0 is no limit. -1 is the context size, which is the same, since a longer prompt is an error.
    return max(body.integer(name, -1) or 0, 0)


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is sampled. A zero in a request overrides a default, too."""

    temperature: float = _float(1.0, 0, 100)  # Divides the logits; 0 is greedy sampling.
    top_k: int = _int(64, -1, _INT32)  # Keeps this many of the likeliest tokens; 0 keeps all (in a request, -1 too).
    top_p: float = _float(0.95, 0, 1)  # Keeps the likeliest tokens whose probabilities add up to this; 1 keeps all.
    min_p: float = _float(0.0, 0, 1)  # Keeps tokens with this share of the highest probability or more; 0 keeps all.
    typical_p: float = _float(1.0, 0, 1, "typical", "typ_p")  # Locally typical sampling; 1 is off.
    # Keeps logits within this many standard deviations of the highest; below 0 is off.
    top_n_sigma: float = _float(-1.0, -1, 1000, "nsigma")
    xtc_probability: float = _float(0.0, 0, 1)  # With this probability, XTC removes the likeliest tokens; 0 is off.
    xtc_threshold: float = _float(0.1, 0, 1)  # XTC removes the tokens above this, except the least likely of them.
    dynatemp_range: float = _float(0.0, 0, 100)  # The temperature varies with the entropy by this; 0 is off.
    dynatemp_exponent: float = _float(1.0, 0, 100)  # The exponent of this dynamic temperature.
    repeat_penalty: float = _float(1.0, 0.01, 100, "repetition_penalty")  # Divides logits of recent tokens; 1 is off.
    presence_penalty: float = _float(0.0, -2, 2)  # Subtracted once from the logits of each recent token; 0 is off.
    frequency_penalty: float = _float(0.0, -2, 2)  # Subtracted for each occurrence of a recent token; 0 is off.
    # How many tokens count as recent; -1 is the whole context, 0 is off.
    penalty_last_n: int = _int(64, -1, _INT32, "repeat_last_n", "penalty_range")
    dry_multiplier: float = _float(0.0, 0, 100)  # The strength of DRY, which penalises repeated sequences; 0 is off.
    dry_base: float = _float(1.75, 1, 100)  # How fast the penalty of DRY grows with the length of a repetition.
    dry_allowed_length: int = _int(2, 0, _INT32)  # Repetitions of up to this many tokens have no penalty.
    dry_penalty_last_n: int = _int(-1, -1, _INT32, "dry_range")  # The tokens that DRY searches; -1: all, 0 is off.
    dry_sequence_breakers: tuple[str, ...] = _read_by(_breakers, ("\n", ":", '"', "*"))  # Texts that end repetitions.
    mirostat: int = _int(0, 0, 2, "mirostat_mode")  # Mirostat 1 or 2 in place of the truncation samplers; 0 is off.
    mirostat_tau: float = _float(5.0, 0, 100)  # The target entropy of Mirostat.
    mirostat_eta: float = _float(0.1, 0, 100)  # The learning rate of Mirostat.
    adaptive_target: float = _float(-1.0, -1, 1)  # Prefers tokens of about this probability; below 0 is off.
    adaptive_decay: float = _float(0.9, 0, 0.99)  # Nearer to 1, adaptive-p corrects its target by more past tokens.
    min_keep: int = _int(1, 0, _INT32)  # Samplers that truncate by probability keep at least this many tokens.
    samplers: tuple[str, ...] = _read_by(_samplers, SAMPLERS)  # The samplers of the chain, in order.
    seed: int | None = _int(None, -(2**63), 2**64 - 1)  # None: a random one for each sequence (in a request, -1 too).
    # Added to the logits of token ids or of texts; minus infinity bans a token. `Model.sequence` sets it from the field
    # of GenerationParams.
    logit_bias: tuple[Bias, ...] = ()

    def fields(self) -> dict[str, Any]:
        """The parameters that are set, for a response: without the biases, which JSON cannot represent."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None and name != "logit_bias"}


# Fields of features that this server does not have, each with the values that do not need the feature.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "grammar_lazy": (False,), "grammar_triggers": ([],), "reasoning_control": (False,),
    "parse_tool_calls": (True,), "modalities": ([], ["text"]), "audio": (), "web_search_options": (),
    "use_beam_search": (False,), "allowed_token_ids": ([],), "bad_words": ([],),
    "include_stop_str_in_output": (False,), "length_penalty": (1, 1.0), "prompt_logprobs": (),
}  # fmt: skip

# Fields that have no effect on the output of this server. --strict accepts them.
WITHOUT_EFFECT = (
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "verbosity", "prediction", "priority", "id_slot", "n_keep",
    "n_discard", "n_cache_reuse", "n_indent", "t_max_prompt_ms", "backend_sampling", "response_fields",
    "add_special_tokens", "verbose",
)  # fmt: skip


@dataclass(frozen=True)
class GenerationParams:
    """The generation parameters of a request: the number of sequences, limits, stop texts, and log probabilities."""

    sampling: Mapping[str, Any] = field(default_factory=dict)  # By the names in SamplingParams. Overrides defaults.
    logit_bias: tuple[Bias, ...] = _read_by(_logit_bias, ())  # Values added to the logits of token ids or of texts.
    # Fields without a reader have other names or ranges in each interface: see `read_params`.
    n: int = 1  # The number of sequences for each prompt.
    max_tokens: int | None = None  # The length limit. None: the rest of the context; 0: only prefill the prompt.
    min_tokens: int = _int(0, 0, None)  # No end-of-generation token or `stop_token_ids` before so many; 0 is off.
    stop: tuple[str, ...] = ()  # Texts that end the output. The output does not include them.
    stop_token_ids: tuple[int, ...] = _read_by(_token_ids, ())  # Tokens that do the same.
    ignore_eos: bool = _read_by(Fields.boolean, False)  # Whether the output continues after end-of-generation tokens.
    top_logprobs: int | None = None  # Return log probabilities of each token and so many likeliest; None is off.
    # Compute log probabilities after all samplers of the chain. False: from the logits of the model.
    post_sampling_probs: bool = _read_by(Fields.boolean, False)
    # Milliseconds after the first token, after which the output ends at the next new line; None is off.
    t_max_predict_ms: float | None = _read_by(_milliseconds, None)
    # The adapters, by their ids, with their scales; None: those of the model that the request names.
    lora: tuple[tuple[int, float], ...] | None = _read_by(_lora, None)
    cache_prompt: bool = _read_by(Fields.boolean, True)  # Whether the cells of cached prefixes are reused.
    truncate_prompt_tokens: int = _read_by(_n_kept, 0)  # Keep this many tokens at the end of the prompt; 0 keeps all.
    params_path: str = ""  # The path of the object in the body that has these fields; "": the body itself.

    def at(self, name: str) -> str:
        """The path of one of these fields in the body, for errors."""
        return f"{self.params_path}.{name}" if self.params_path else name


# The numbers of SamplingParams by name.
NUMBERS: Mapping[str, Number] = {
    declared.name: declared.metadata["read"]
    for declared in fields(SamplingParams)
    if isinstance(declared.metadata.get("read"), Number)
}


def read_params(
    body: Fields,
    *,
    n: int = 1,
    top_logprobs: int | None = None,
    least_tokens: int = 1,
    lengths: Sequence[str] = ("max_completion_tokens", "max_tokens", "n_predict"),
    stop: str = "stop",
) -> GenerationParams:
    """The parameters in a body. Each interface reads `n` and `top_logprobs` itself.

    With `least_tokens=0`, requests may only prefill the prompt. `lengths` are the names of the length limit, of which
    the first one that is set counts. `stop` is the name of the stop texts.
    """
    body.accept(WITHOUT_EFFECT)
    refuse_unsupported(body, UNSUPPORTED)
    max_tokens = _max_tokens(body, least_tokens, lengths)
    params = GenerationParams(
        n=n,
        top_logprobs=top_logprobs,
        max_tokens=max_tokens,
        sampling=read_sampling(body),
        stop=_texts(body, stop),
        params_path=body.path,
        **_read(GenerationParams, body),
    )
    if max_tokens is not None and params.min_tokens > max_tokens:
        problem = f"is {params.min_tokens} and must not exceed the length limit, {max_tokens}"
        raise field_error(body.at("min_tokens"), problem)
    return params


def read_n_probs(body: Fields) -> int | None:
    """llama.cpp's `n_probs`: the number of likeliest tokens with log probabilities; 0 is off."""
    return body.integer("n_probs", 0, MAX_TOP_LOGPROBS) or None


def read_sampling(body: Fields) -> dict[str, Any]:
    """The sampling values in a body, by their names in SamplingParams."""
    values = _read(SamplingParams, body)
    # -1 means "all tokens" for top_k and "a random seed" for seed.
    if values.get("top_k") == -1:
        values["top_k"] = 0
    if values.get("seed") == -1:
        values["seed"] = None
    return values


def _read(declaration: type[Any], body: Fields) -> dict[str, Any]:
    """The values in a body for the fields of a declaration (SamplingParams or GenerationParams)."""
    readers = {field.name: field.metadata["read"] for field in fields(declaration) if "read" in field.metadata}
    values = {name: read(body, name) for name, read in readers.items()}
    return {name: value for name, value in values.items() if value is not None}


def parse_default(text: str) -> dict[str, Any]:
    """Parse NAME=VALUE of a command line. The value is written as in a JSON request; a string needs no quotes."""
    name, _, value = text.partition("=")
    try:
        body = Fields({name: decode_json(value)})
    except (ValueError, RecursionError):
        body = Fields({name: value})
    values = read_sampling(body)
    body.report_unknown()
    if body.ignored(strict=False):
        known = ", ".join((*NUMBERS, "samplers", "dry_sequence_breakers"))
        raise field_error(name, f"is not a sampling parameter; the parameters are {known}")
    return values


def _max_tokens(body: Fields, least: int, names: Sequence[str]) -> int | None:
    """The length limit; -1 means no limit."""
    lengths = {name: body.integer(name) for name in names}
    for name, value in lengths.items():
        if value is not None and value != -1 and value < least:
            body.refuse(name, f"an integer of at least {least}, or -1 for no limit")
    first = first_given(lengths.values())
    return None if first == -1 else first


def is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
