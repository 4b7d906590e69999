"""Tools, the loop that runs them, and conversations.

tools.py                        Tool: a function that a model may call; the run of one call, its ToolResult
tool_run.py                     ToolRun: requests and calls in turn, until the model calls no tool
conversation.py                 Conversation: messages to which each run is added
"""
