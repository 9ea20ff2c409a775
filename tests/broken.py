"""A broken program: a valid toy with one small thing wrong, and what must be said of it."""

from dataclasses import dataclass

from hotloop.ir.parse import parse_program
from hotloop.ir.program import Program


@dataclass(frozen=True)
class Broken:
    """A toy, what to change in its text, and exactly the problems that the verifier must list."""

    name: str
    source: str
    changes: tuple[tuple[str, str], ...]
    problems: tuple[str, ...]

    def program(self) -> Program:
        text = self.source
        for old, new in self.changes:
            assert old in text, f"{self.name}: {old!r} is not in the toy"
            text = text.replace(old, new, 1)
        return parse_program(text)


def broken(name: str, source: str, *changes: tuple[str, str], problems: list[str]) -> Broken:
    return Broken(name, source, changes, tuple(problems))
