"""A body for each endpoint that names a model."""

from typing import Any

from tests.support.chat_requests import HI

_CHAT, _TEXT, _INPUT = {"messages": HI, "max_tokens": 1}, {"prompt": "a"}, {"input": "a"}

# By path; each body also has a field `model`.
MODEL_REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": _CHAT, "/v1/messages": _CHAT, "/v1/messages/count_tokens": _CHAT, "/api/chat": _CHAT,
    "/v1/chat/completions/input_tokens": _CHAT, "/v1/responses/input_tokens": _INPUT,
    "/apply-template": _CHAT, "/v1/completions": _TEXT, "/completion": _TEXT, "/api/generate": _TEXT,
    "/api/embeddings": _TEXT, "/v1/embeddings": _INPUT, "/v1/responses": _INPUT, "/api/embed": _INPUT,
    "/infill": {"input_prefix": "a"}, "/v1/rerank": {"query": "a", "documents": ["b"]}, "/tokenize": {"content": "a"},
    "/detokenize": {"tokens": [1]}, "/api/show": {},
}  # fmt: skip
# Those that can be streamed.
STREAMED = (
    "/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/completions", "/completion", "/api/generate",
    "/v1/responses", "/infill",
)  # fmt: skip
