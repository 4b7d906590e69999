"""The command line, `python -m localchat`, whose arguments `__main__.py` parses.

chat.py                         the interactive chat and its commands
session.py                      the conversation: a prompt is sent, and its response is printed and added
printer.py                      the printing of one response
toolset.py                      the tools of MCP servers, and the approval of their calls
console.py                      stdin, stdout and stderr; exit codes; notices after a time
"""
