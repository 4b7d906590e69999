"""The program that trains the built-in model: text generators, tokenizer, training, export, evaluation.

`python -m tools.train_demo` trains the model from scratch, writes `localchat/serving/models/demo.gguf` and prints the
results of the held-out cases. It needs the extra `train`. The package `localchat` does not import it.
"""
