"""Reliability programs: fuzzing, load and faults against a running server.

`python -m tests.soak NAME --n N --seed S` runs one program and prints a line for docs/reliability.md. `make soak` runs
all programs at full length, tests/project/test_soak.py each for a moment.
"""
