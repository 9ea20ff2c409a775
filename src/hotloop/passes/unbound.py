"""unbound: a loop over tokens runs until the model says stop, not a fixed number of times.

Before      loop %i1 < 3 { carried %token = …  … yield %done -> %done }   until %done
After       loop %i1 until %done { carried %token = …  … }
Requires    a program that is one loop without stacked arguments, and an `until` output it yields
Why         Nothing in such a loop depends on the iteration number or on the trip count: what holds
            for three consecutive steps holds for any number of them, by induction.
"""

from dataclasses import replace

from hotloop.ir.program import Loop, Program
from hotloop.util.remarks import Remark


def unbound(program: Program) -> tuple[Program, list[Remark]]:
    if len(program.body) != 1 or not isinstance(program.body[0], Loop):
        return program, [_missed(program, f"the program is {len(program.body)} items, not a loop")]
    loop = program.body[0]
    stacked = next(loop.stacks(), None)
    if stacked is not None:
        return program, [_missed(program, f"%{stacked.name} is another buffer in each iteration")]
    inner = {outside: inside for inside, outside in loop.yields}
    if program.until not in inner:
        return program, [_missed(program, "no output says when to stop")]
    endless = replace(loop, trip=None, until=inner[program.until])
    text = f"a launch per generation: the loop over tokens runs until %{endless.until}"
    return replace(program, body=(endless,)), [Remark("unbound", "did", program.name, text)]


def _missed(program: Program, text: str) -> Remark:
    return Remark("unbound", "missed", program.name, text)
