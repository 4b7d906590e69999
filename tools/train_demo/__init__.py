"""The recipe of the built-in model: text generators, tokenizer, training, export, evaluation.

`python -m tools.train_demo` goes from nothing to `localchat/models/demo.gguf` and prints the
held-out figures. Nothing here is imported by the package `localchat`; the needed libraries are the
extra `train`.
"""
