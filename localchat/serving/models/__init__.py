"""Model files: reads GGUF headers, finds the file of a model argument, and resolves model names."""
