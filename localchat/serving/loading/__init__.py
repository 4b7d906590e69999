"""Which models are loaded: the states of each, the thread that loads and unloads them, and what is logged of that.

Requests use `Service`. See docs/design.md, "Models of one server".
"""
