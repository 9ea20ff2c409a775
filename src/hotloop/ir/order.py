"""What happens before what, for every number of iterations at once.

The threads of a team run the stages of a program in program order, but a tile of a stage may be
run by any of them; so nothing orders two stages but waiting. A *node* is a stage of a call at its
place in the program. An *edge* a → b says that every tile of b starts after a is complete:

    within a call     b names a in `after`; or b has a barrier, and a stands before it
    between items     b is a stage that waits for the entry of its call (it names ENTRY, or has a
                      barrier), a is an exit of the item before; the entry of a loop is that of its
                      first item, its exit that of its last, in the last iteration
    carried by L      the same from the last item of L's body to its first, one iteration later
    between launches  where every item is a launch, all of an item is complete before the next

Why no unrolling is needed. Write a[i] for a in iteration i of loop L.

1. An edge within an iteration holds in every iteration. A path of such edges goes forward in
   program order, so it never leaves a loop that contains both its ends: it orders a[i] before b[i].
2. A path with exactly one edge that L carries, and no other carried edge, orders a[i] before
   b[i + 1]. (With two, it would say nothing about b[i + 1].)
3. If that holds with b = a, which is *the chain* of a in L, then a[i] is before all later
   iterations of a, and with 1 and 2, before those of b. Where a loop contains only one end of a
   path, its chain makes the path hold for all iterations of that end: the first is the earliest,
   and what leaves the loop leaves it after the last.
4. All edges that L carries go from the same stages, the exits of its last item, to the same stages,
   those that wait for the entry of its first. So a path as in 2 from a to b exists just where a
   reaches an exit and an entry reaches b; and where every stage in L has its chain, *any* two
   stages in *any* two iterations of L are ordered by their iterations.

So a program all of whose stages have their chains can go wrong within one iteration only, and there
it is a question of paths in a graph of stages, whose size depends on no trip count.
"""

from dataclasses import dataclass

from hotloop.ir.program import ENTRY, Call, Item, Loop, Program, Stage

Path = tuple[int, ...]
"""Where an item stands: its position in the program's body, in that of the loop there, …"""


@dataclass(frozen=True)
class Node:
    """A stage of a call at its place in the program."""

    index: int
    path: Path
    call: Call
    stage: Stage


@dataclass(frozen=True)
class _Carried:
    """Bit sets of the nodes of a loop that reach its exits, and that its entries reach."""

    reach_end: int
    from_start: int


class Order:
    """Happens-before among the stages of a program. Nodes are numbered in program order.

    Requires kernels whose stages wait for earlier ones only, and loops with a body.
    """

    def __init__(self, program: Program) -> None:
        self.nodes: list[Node] = []
        self.at: dict[Path, range] = {}
        """The nodes of the item at each path."""
        self.loops: dict[Path, Loop] = {}
        self._edges: list[list[int]] = []  # for each node, those it waits for, same iteration
        self._ends: dict[Path, tuple[list[int], list[int]]] = {}  # of a loop: entries and exits
        self._items(program.body, ())
        self.before = self._closure_before(program)
        """For each node, the bit set of nodes that precede it in the same iteration."""
        self.after = self._closure_after(program)
        self._carried = {path: self._carry(path) for path in self.loops}

    def ordered(self, a: int, b: int, loop: Path | None = None) -> bool:
        """Whether node `a` precedes node `b`, in the same iteration of the loops around both.

        With `loop`, the path of a loop around both: whether each iteration of `a` precedes the next
        iteration of `b`.
        """
        if loop is None:
            return bool(self.before[b] >> a & 1)
        carried = self._carried[loop]
        return bool(carried.reach_end >> a & 1 and carried.from_start >> b & 1)

    def unchained(self) -> list[tuple[Node, Loop]]:
        """Nodes that are not ordered after their own previous iteration of a loop."""
        return [
            (self.nodes[index], loop)
            for path, loop in self.loops.items()
            for index in self.at[path]
            if not self.ordered(index, index, path)
        ]

    # Edges ---------------------------------------------------------------------------------------

    def _items(self, body: tuple[Item, ...], path: Path) -> tuple[list[int], list[int]]:
        """Add the nodes of `body`; give the entries of its first item and the exits of its last."""
        first: list[int] = []
        exits: list[int] = []
        for k, item in enumerate(body):
            place, start = (*path, k), len(self.nodes)
            if isinstance(item, Call):
                entries, leaving = self._call(item, place)
            else:
                self.loops[place] = item
                entries, leaving = self._ends[place] = self._items(item.body, place)
            self.at[place] = range(start, len(self.nodes))
            for entry in entries:
                self._edges[entry] += exits
            first = first if k else entries
            exits = leaving
        return first, exits

    def _call(self, call: Call, path: Path) -> tuple[list[int], list[int]]:
        start = len(self.nodes)
        number = {stage.name: start + k for k, stage in enumerate(call.kernel.stages)}
        entries = []
        for stage in call.kernel.stages:
            index = len(self.nodes)
            self.nodes.append(Node(index, path, call, stage))
            if stage.barrier:
                self._edges.append(list(range(start, index)))
            else:
                self._edges.append([number[name] for name in stage.after if name != ENTRY])
            if stage.barrier or ENTRY in stage.after:
                entries.append(index)
        return entries, [number[name] for name in call.kernel.exits]

    # Paths ---------------------------------------------------------------------------------------

    def _closure_before(self, program: Program) -> list[int]:
        before: list[int] = []
        for node, edges in zip(self.nodes, self._edges, strict=True):
            reached = 0
            if program.launch == "item":
                reached = (1 << self.at[node.path[:1]].start) - 1
            for source in edges:
                reached |= before[source] | 1 << source
            before.append(reached)
        return before

    def _closure_after(self, program: Program) -> list[int]:
        targets: list[list[int]] = [[] for _ in self.nodes]
        for index, edges in enumerate(self._edges):
            for source in edges:
                targets[source].append(index)
        everything = (1 << len(self.nodes)) - 1
        after = [0] * len(self.nodes)
        for index in range(len(self.nodes) - 1, -1, -1):
            reached = 0
            if program.launch == "item":
                stop = self.at[self.nodes[index].path[:1]].stop
                reached = everything >> stop << stop
            for target in targets[index]:
                reached |= after[target] | 1 << target
            after[index] = reached
        return after

    def _carry(self, path: Path) -> _Carried:
        entries, exits = self._ends[path]
        inside = self.at[path]
        members = (1 << inside.stop) - (1 << inside.start)
        reach_end = from_start = 0
        for node in exits:
            reach_end |= self.before[node] | 1 << node
        for node in entries:
            from_start |= self.after[node] | 1 << node
        return _Carried(reach_end & members, from_start & members)
