"""Runs requests on the engine: builds prompts and constraints, submits sequences, and parses their output to events.

    model.py      a loaded model, with its templates and defaults
    prompt/       from messages and tools to the text of a prompt
    constraints/  from tools and a response format to a grammar
    dialects/     from the text of an output to reasoning, content and calls
    runs/         starts requests with these, and makes events of the tokens of their sequences

A request is a value of `core/request.py`. The interfaces (`serving/api/`) make it, and encode the events.
"""
