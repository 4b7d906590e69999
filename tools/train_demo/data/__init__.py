"""Generators of training dialogues, one module per skill; `mixture` puts them together."""
