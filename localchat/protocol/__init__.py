"""Wire formats: one module per API parses a request body, and encodes results as a response body or stream chunks.

Independent of HTTP, the engine, templates and models; it has its own errors (errors.py).
"""
