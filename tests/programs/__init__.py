"""Runs real programs, such as coding agents, against the server: `make program-tests`."""
