"""repeat: write a step down n times, each fed by the one before.

Before      %next = call @step(%token)   feedback %next -> %token
After       %next.0 = call @step(%token)   %next = call @step(%next.0)   feedback %next -> %token
Requires    a program with feedback
Why         Consecutive tokens are consecutive calls too. Written down, they are a run like that
            of the layers, and the loop pass needs no rule of its own for them.
"""

from collections.abc import Callable
from dataclasses import replace

from hotloop.ir.program import Item, Program


def repeat(program: Program, n: int) -> Program:
    body: list[Item] = []
    fed = {inside: inside for _, inside in program.feedback}
    for k in range(n):
        rename = _renamer(program, fed, "" if k == n - 1 else f".{k}")
        body += [item.rename(rename) for item in program.body]
        fed = {inside: rename(outside) for outside, inside in program.feedback}
    return replace(program, body=tuple(body))


def _renamer(program: Program, fed: dict[str, str], suffix: str) -> Callable[[str], str]:
    defined = {name for item in program.body for name in item.defines}

    def rename(name: str) -> str:
        return name + suffix if name in defined else fed.get(name, name)

    return rename
