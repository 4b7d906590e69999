"""Wire formats: for each API, parses request bodies, and encodes results as response bodies or stream chunks.

Parsers raise BadRequest for an invalid field. This package is independent of HTTP, the engine, templates and models.
"""
