"""The models: reads GGUF headers, finds the file that a name means, and says which models are loaded."""
