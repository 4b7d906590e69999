"""The programs and libraries from PyPI."""

from tests.programs.program import Program

PROGRAMS: tuple[Program, ...] = ()
