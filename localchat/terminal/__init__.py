"""`python -m localchat` on the terminal: questions from the command line, and a chat."""
