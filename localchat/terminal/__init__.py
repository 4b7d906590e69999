"""The command line of `python -m localchat`: a prompt from the arguments, or a chat."""
