"""The models on this machine: reads GGUF headers, finds the file that a name means, and fetches new ones."""
