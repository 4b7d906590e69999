"""The programs that are tested."""

from tests.programs import npm, pypi
from tests.programs.program import Program

PROGRAMS: tuple[Program, ...] = (*npm.PROGRAMS, *pypi.PROGRAMS)
