"""Pure: a conversation to a prompt, and generated text to typed events."""
