"""Random programs, about as often right as wrong: what the verifier is checked against.

They have kernels of up to four stages, with edges some of which may be missing, nested loops, and
carried values that may or may not have the buffers that they need. Names and types are right.
"""

import random
from dataclasses import dataclass

from hotloop.ir.graph import Op, Value
from hotloop.ir.program import (
    ENTRY,
    ArgKind,
    Call,
    Item,
    Kernel,
    Loop,
    LoopArg,
    Part,
    Program,
    Stage,
)
from hotloop.ir.types import tensor

X = tensor("f32", 1, 32)
WEIGHTS = {"w": tensor("f32", 32), "m": tensor("f32", 32, 32)}


def random_program(seed: int) -> Program:
    return _Maker(random.Random(seed)).program()


@dataclass
class _Maker:
    chance: random.Random
    made: int = 0

    def maybe(self, probability: float) -> bool:
        return self.chance.random() < probability

    def fresh(self, prefix: str) -> str:
        self.made += 1
        return f"{prefix}{self.made}"

    def program(self) -> Program:
        kernels = [self.kernel(f"k{i}") for i in range(self.chance.randint(1, 3))]
        names = ["a", "b"]
        body = self.body(kernels, names, 0, ())
        outputs = [n for item in body for n in item.defines]
        return Program(
            "random",
            (Value("a", X), Value("b", X)),
            tuple(Value(name, type) for name, type in WEIGHTS.items()),
            (),
            body,
            tuple(self.chance.sample(outputs, min(2, len(outputs)))),
            launch="item" if self.maybe(0.2) else "program",
        )

    # Kernels -------------------------------------------------------------------------------------

    def kernel(self, name: str) -> Kernel:
        values = ["p", "q"]
        homes: dict[str, str] = {}
        stages: list[Stage] = []
        for k in range(self.chance.randint(1, 4)):
            stages.append(self.stage(f"s{k}", values, homes))
        used = {name for stage in stages for op in stage.ops for name in op.operands}
        params = [Value(n, X) for n in ("p", "q") if n in used]
        params += [Value(n, type) for n, type in WEIGHTS.items() if n in used]
        last = stages[-1].parts[-1].ops[-1].result
        assert last is not None
        results = [last.name]
        if self.maybe(0.3):
            results.append(self.chance.choice(sorted(homes)))
        return Kernel.of(name, tuple(params), tuple(dict.fromkeys(results)), tuple(stages))

    def stage(self, name: str, values: list[str], homes: dict[str, str]) -> Stage:
        """Add a stage; `values` are those that it may read, `homes` the stages that make them."""
        each: list[Op] = []
        if self.maybe(0.3):
            each.append(self.op("rms_norm", values))
        private = [op.result.name for op in each if op.result]
        parts = []
        for _ in range(1 + self.maybe(0.2)):
            tokens, ops, own = self.maybe(0.2), list[Op](), list[str]()
            for k in range(self.chance.randint(1, 3)):
                kind = "rms_norm" if tokens else self.chance.choice(["add", "add", "linear"])
                favourites = own if k and self.maybe(0.8) else private
                ops.append(self.op(kind, values, favourites))
                own.append(ops[-1].result.name if ops[-1].result else "")
            parts.append(Part(tuple(ops), 1 if tokens else self.chance.choice([8, 16])))
            homes.update((n, name) for n in own)
        reads = {n for part in parts for op in part.ops for n in op.operands}
        reads |= {n for op in each for n in op.operands}
        needed = {homes[n] for n in reads if n in homes} - {name}
        after = sorted(needed) or [ENTRY]
        earlier = sorted({home for home in homes.values() if home != name})
        if self.maybe(0.1):
            after.remove(self.chance.choice(after))
        if self.maybe(0.3) and earlier:
            after = sorted({*after, self.chance.choice(earlier)})
        values += [n for n, home in homes.items() if home == name]
        if self.maybe(0.1):
            return Stage(name, (), tuple(each), tuple(parts), barrier=True)
        return Stage(name, tuple(after), tuple(each), tuple(parts))

    def op(self, kind: str, values: list[str], favourites: list[str] | None = None) -> Op:
        def pick() -> str:
            return self.chance.choice(favourites if favourites and self.maybe(0.6) else values)

        result = Value(self.fresh("v"), X)
        if kind == "rms_norm":
            return Op(kind, (pick(), "w"), result, (("eps", 1e-5),))
        if kind == "linear":
            return Op(kind, (pick(), "m"), result)
        return Op(kind, (pick(), pick()), result)

    # Bodies --------------------------------------------------------------------------------------

    def body(
        self, kernels: list[Kernel], names: list[str], depth: int, around: tuple[str, ...]
    ) -> tuple[Item, ...]:
        """A body in which `names` may be read; what it defines is added to them."""
        items: list[Item] = []
        for _ in range(self.chance.randint(1, 3)):
            if depth < 2 and self.maybe(0.4):
                items.append(self.loop(kernels, names, depth + 1, around))
            else:
                items.append(self.call(self.chance.choice(kernels), names))
            names += items[-1].defines
        return tuple(items)

    def call(self, kernel: Kernel, names: list[str]) -> Call:
        recent = names[-2:]
        args = tuple(
            param.name
            if param.name in WEIGHTS
            else self.chance.choice(recent if self.maybe(0.8) else names)
            for param in kernel.params
        )
        return Call(kernel, args, tuple(self.fresh("r") for _ in kernel.results))

    def loop(
        self, kernels: list[Kernel], names: list[str], depth: int, around: tuple[str, ...]
    ) -> Loop:
        index = f"i{depth}"
        initial = self.chance.choice(names[-2:] if self.maybe(0.8) else names)
        inner = [self.fresh("c")]
        others = [name for name in names if name != initial]
        fixed = self.chance.sample(others, min(len(others), self.chance.randint(0, 1)))
        inside = [self.fresh("f") for _ in fixed]
        body = self.body(kernels, inner_names := [*inside, *inner], depth, (*around, index))
        results = [n for item in body if isinstance(item, Call) for n in item.results]
        if not results:
            body = (*body, self.call(kernels[0], inner_names))
            results = list(body[-1].defines)
        following = self.chance.choice(results[-2:])
        invariant: ArgKind = "invariant"
        args = [LoopArg(invariant, name, (name,)) for name in WEIGHTS]
        args += [LoopArg(invariant, a, (b,)) for a, b in zip(inside, fixed, strict=True)]
        buffers = self.chance.choice([1, 2])
        args.append(LoopArg("carried", inner[0], (initial,), following, buffers))
        left = following if self.maybe(0.8) else self.chance.choice(results)
        yields = ((left, self.fresh("y")),)
        return Loop(index, self.chance.randint(1, 3), tuple(args), body, yields)
