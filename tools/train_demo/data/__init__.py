"""Generators of training dialogues, one module per skill; `mixture` mixes them."""
