"""Mistral Nemo, Small 3, Devstral, Magistral, Ministral 3, Large 3.

[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "abc123def"}]
[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{"a": 1}
[TOOL_CALLS]f[ARGS]{"a": 1}
"""

from __future__ import annotations

from ..call_layout import AN_ID
from ..dialect import Dialect
from ..json_calls import JsonCalls
from ..named_calls import NamedCalls

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"

DIALECT = Dialect(
    "mistral",
    detected_by=((_CALLS,),),
    calls=(
        NamedCalls(call=_CALLS, before_arguments=_ID + AN_ID + _ARGUMENTS, template_text=_ID),
        NamedCalls(call=_CALLS, before_arguments=_ARGUMENTS, template_text=_ARGUMENTS),
        JsonCalls(opener=_CALLS, is_list=True, id_placeholder=AN_ID, id_is_last=True),
    ),
    # Some models leave out [ARGS].
    also_read=(NamedCalls(call=_CALLS),),
)
