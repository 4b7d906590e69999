"""From a conversation to a prompt: the model's chat template in a sandbox, and user text kept apart from markers."""
