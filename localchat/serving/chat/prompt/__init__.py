"""Chat templates: renders messages and tools to a prompt in a Jinja sandbox; user text never becomes control tokens."""
