"""llama-stack's vocabulary and OpenAI's, converted both ways. No I/O, and llama-stack need not be there.

Messages, tool definitions, sampling options, replies and log probabilities, and `stack_events`, which shows a stream
as llama-stack does (docs/contract.md has the rows). What comes from llama-stack may be its objects or dicts; what goes
there is dicts, or small classes that have its names. Where llama-stack's own conversions disagree or lose something,
one rule holds everywhere.
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
