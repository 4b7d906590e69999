"""POST /infill, llama.cpp's interface for code completion in editors (fill-in-the-middle).

The response has the format of POST /completion.
"""

from __future__ import annotations

from ..core.fields import Fields, parse_body, unknown_fields
from ..core.interface import Interface
from ..core.params import WITHOUT_EFFECT, read_n_probs, read_params
from ..core.request import DEFAULT_OPTIONS, ParseOptions, read_text_request
from .completions import CompletionRequest, SourceFile
from .native_completion import LENGTHS, NativeBody, NativeStream


def parse_infill(raw: bytes, options: ParseOptions = DEFAULT_OPTIONS) -> CompletionRequest:
    """The request in a body.

    Raises:
        BadRequest: A field is invalid.
    """
    body = parse_body(raw)
    before, after = body.text("input_prefix"), body.text("input_suffix")
    if before is None and after is None:
        body.refuse("input_prefix", "the text before the gap")
    return CompletionRequest(
        prompts=(before or "",),
        suffix=after or "",
        suffix_field="input_suffix",
        files=tuple(_file(entry) for entry in body.objects("input_extra")),
        begun=body.text("prompt") or "",
        params=read_params(body, n=1, top_logprobs=read_n_probs(body), least_tokens=0, lengths=LENGTHS),
        **read_text_request(body),
        unknown=unknown_fields(body, WITHOUT_EFFECT, options.strict),
    )


def _file(entry: Fields) -> SourceFile:
    text = entry.text("text")
    if text is None:  # An empty text is valid.
        entry.refuse("text", "a string")
    return SourceFile(entry.text("filename") or "file", text)


INTERFACE = Interface(id_prefix="cmpl-", parse=parse_infill, stream=NativeStream, whole=NativeBody)
