"""Reliability programs: fuzzing, load and faults against a running server, seeded and bounded.

`python -m tests.soak NAME --n N --seed S` runs one of them and prints a line for docs/reliability.md;
`make soak` runs all of them at full length, and tests/test_soak.py for a moment.
"""
