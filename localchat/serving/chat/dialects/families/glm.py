"""GLM 4.5 to 4.7, Ling 3, Spark 2.5, Laguna.

<tool_call>f
<arg_key>a</arg_key>
<arg_value>text</arg_value>
</tool_call>
"""

from __future__ import annotations

from dataclasses import replace

from ..dialect import Dialect
from ..shared_formats import FUNCTION_TAGS, JSON_OBJECT, KEY_VALUE_TAGS

DIALECT = Dialect(
    "glm",
    detected_by=(("<tool_call>", "<arg_key>"),),
    # Models trained on both formats sometimes generate function tags.
    calls=(KEY_VALUE_TAGS, replace(FUNCTION_TAGS, around=())),
    also_read=(JSON_OBJECT, FUNCTION_TAGS),
)
