"""The wire formats: one module per API turns a body into a request, and results into a body or chunks.

Knows nothing of HTTP, the engine, templates or models: values in, values out, and errors of its own.
"""
