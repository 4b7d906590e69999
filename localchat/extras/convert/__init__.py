"""Convert between the types of llama-stack and those of OpenAI's API. No I/O; llama-stack need not be installed.

Messages, tool definitions, sampling options, replies, log probabilities and streams are converted; docs/contract.md
lists the rules. Arguments of llama-stack's types may be its objects or dicts. Results are dicts, or the dataclasses of
this package, whose fields have llama-stack's names. Where llama-stack's own conversions differ from each other or lose
data, this package has one rule.
"""

from .calls import StackCall, UnparseableToolCall, native_calls, stack_call, stack_calls
from .definitions import tool_definition, type_schema
from .messages import from_openai, to_openai, with_parts
from .streams import (
    CompletionPiece,
    StackEvent,
    StackReply,
    StackText,
    StackToolCall,
    completion_pieces,
    stack_events,
    stack_reply,
)
from .values import chat_logprobs, completion_logprobs, sampling_options, stop_reason, streamed_logprobs

__all__ = [
    "CompletionPiece",
    "StackCall",
    "StackEvent",
    "StackReply",
    "StackText",
    "StackToolCall",
    "UnparseableToolCall",
    "chat_logprobs",
    "completion_logprobs",
    "completion_pieces",
    "from_openai",
    "native_calls",
    "sampling_options",
    "stack_call",
    "stack_calls",
    "stack_events",
    "stack_reply",
    "stop_reason",
    "streamed_logprobs",
    "to_openai",
    "tool_definition",
    "type_schema",
    "with_parts",
]
