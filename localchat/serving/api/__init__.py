"""Wire formats: for each API, parses request bodies, and encodes results as response bodies or stream chunks.

    chat.py              /v1/chat/completions
    completions.py       /v1/completions, and llama.cpp's /completion and /infill
    messages.py          Anthropic's /v1/messages
    responses.py         OpenAI's /v1/responses
    response_items.py    the items of its requests, which become messages
    response_store.py    the responses that it has stored
    ollama.py            Ollama's /api/chat, /api/generate and /api/embed
    embeddings.py        /v1/embeddings and /v1/rerank
    tokens.py            llama.cpp's /tokenize and /detokenize

What several of them have:

    content.py           the content of messages, and inputs
    tools.py             tools, the choice among them, and calls
    response_formats.py  response formats and JSON schemas
    encoder.py           the base of the encoders

Parsers raise BadRequest for an invalid field. This package is independent of HTTP, the engine, templates and models.
"""
