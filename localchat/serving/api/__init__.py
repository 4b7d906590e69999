"""Wire formats: for each API, parses request bodies, and encodes results as response bodies or stream chunks.

This package is independent of HTTP, the engine, templates and models. errors.py has its exceptions.
"""
