"""Runs requests on the engine: a request becomes sequences, and what they generate becomes events; also vectors.

`start.py` begins a request for text, `generation.py` is one in flight, and `output_reader.py` reads one of its outputs.
"""
