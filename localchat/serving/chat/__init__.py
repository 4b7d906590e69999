"""Runs requests on the engine: builds prompts and constraints, submits sequences, and parses their output to events."""
