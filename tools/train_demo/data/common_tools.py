"""Tools that programs commonly have, with requests as people write them.

Made-up tools teach the model to read names; these teach the English around values, such as an origin after "from".
Every tool and parameter has several names, so that the model must read the names here too.
"""

from __future__ import annotations

import re
from pathlib import Path

from .source import Source
from .tool_schemas import Param, ToolSpec, styled

_SIGNATURE = re.compile(r"(\w+)\((.*)\)")


def common_tool(source: Source) -> ToolSpec:
    """One of the tools, under one of its names."""
    signature, description, *asks = source.choice(_ENTRIES)
    match = _SIGNATURE.fullmatch(source.expand(signature))
    assert match, signature
    params = [_param(part) for part in match[2].split(", ")]
    for number, param in enumerate(params, 1):
        asks = [ask.replace(f"${number}", f"${param.name}") for ask in asks]
    # All names of a tool count as one verb and one noun, since a request could not distinguish two of them.
    verb, noun = signature.split("(")[0], "common"
    return ToolSpec(
        styled(source, *match[1].split("_")), verb, noun, tuple(params), source.expand(description), tuple(asks)
    )


def _param(text: str) -> Param:
    name, kind = text.split(": ")
    required = not name.endswith("?")
    options = tuple(kind.split("/")) if "/" in kind else ()
    return Param(name.rstrip("?"), "enum" if options else kind, options, required)


# One tool per paragraph: name(parameter: kind, ...), its description, and requests in which $1 is the value of the
# first parameter. A ? marks what a request may leave out; kinds with / list the options of an enum.
_TEXT = (Path(__file__).parent / "written" / "common_tools.txt").read_text(encoding="utf-8")
_ENTRIES = [paragraph.split("\n") for paragraph in _TEXT.strip().split("\n\n")]
