"""Pages: who holds which page of the KV cache, and what is known to be in it.

A page holds the keys and values of `size` consecutive positions. A sequence reaches its own
through a *page table*. What a page holds depends on all tokens up to its end, so pages that were
filled form a tree, in which the path from the root spells the tokens: the *prefix cache*. A new
sequence that begins like an old one holds the same full pages, which nobody writes again; where it
leaves the old one inside a page, that page is copied first, so a hit is exact to the token.

    tokens    0…255   256…511  512…599
    first     page 4  page 2   page 7            "the system prompt, then this question"
    second    page 4  page 2   page 0 (a copy)   the same up to token 570

Everything here is bookkeeping: no page is touched, `Opened.copy` says what somebody has to do.
A page without holder stays in the tree until its room is needed, the one left longest ago first.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(eq=False)
class Node:
    """A page in the tree: `tokens` are those of its own positions, as many as are known."""

    parent: "Node | None"
    tokens: tuple[int, ...]
    page: int
    children: dict[tuple[int, ...], "Node"] = field(default_factory=dict)


@dataclass(eq=False)
class PageTable:
    """The pages of one sequence, in the order of positions.

    The first `len(nodes)` of them are full and in the tree, perhaps held by others too; the rest
    are this sequence's alone. `tail` is the node of the first of those, where it has one.
    """

    pages: list[int]
    nodes: list[Node]
    tail: Node | None = None


@dataclass(frozen=True)
class Opened:
    """A new table, how many tokens of its sequence are cached, and a page to copy first.

    `copy` is (source, target); whoever owns the memory does it before anything else is written.
    """

    table: PageTable
    cached: int
    copy: tuple[int, int] | None


class Pages:
    """`count` pages of `size` positions, all free at first."""

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size
        self._holders = [0] * count
        self._free = list(range(count - 1, -1, -1))
        self._root = Node(None, (), -1)
        self._nodes: dict[int, Node] = {}
        # Nodes that nobody holds, the one left longest ago first. A table is left from its end,
        # so children stand before their parents: the first is a leaf.
        self._idle: dict[int, Node] = {}

    @property
    def available(self) -> int:
        """Pages that nobody holds, cached ones included."""
        return len(self._free) + len(self._idle)

    @property
    def cached(self) -> int:
        """Pages whose content a later sequence may find."""
        return len(self._nodes)

    def needed(self, positions: int) -> int:
        """How many pages hold so many positions."""
        return -(-positions // self.size)

    def open(self, tokens: list[int], reserve: int = 0, anew: bool = False) -> Opened | None:
        """A table for all of `tokens`; None where that would leave fewer than `reserve` pages.

        The last token never counts as cached: it has to be run for what follows it. With `anew`,
        nothing does.
        """
        nodes, source, shared = self._find([] if anew else tokens[:-1])
        for node in nodes:
            self._hold(node.page)
        missing = self.needed(len(tokens)) - len(nodes)
        if missing + reserve > self.available:
            self._leave(node.page for node in reversed(nodes))
            return None
        if source is not None and source.page in self._idle:
            self._idle[source.page] = self._idle.pop(source.page)
        own = [self._take() for _ in range(missing)]
        table = PageTable([*(node.page for node in nodes), *own], nodes)
        cached = len(nodes) * self.size + shared
        # The source itself may have been the last page to be had: then it is there already.
        if source is None or source.page == own[0]:
            return Opened(table, cached, None)
        return Opened(table, cached, (source.page, own[0]))

    def extend(self, table: PageTable, positions: int) -> bool:
        """Make `table` hold so many positions; False, and no change, where pages are lacking."""
        missing = self.needed(positions) - len(table.pages)
        if missing > self.available:
            return False
        table.pages += [self._take() for _ in range(missing)]
        return True

    def commit(self, table: PageTable, tokens: list[int]) -> None:
        """Put into the tree what `table` holds now: the keys and values of `tokens`.

        A page that another sequence has filled with the same is held instead of our own: its bits
        are the same, and ours becomes free.
        """
        for at in range(len(table.nodes), len(tokens) // self.size):
            self._drop_tail(table)
            parent = self._last(table)
            block = tuple(tokens[at * self.size : (at + 1) * self.size])
            node = parent.children.get(block)
            if node is None:
                node = self._add(parent, block, table.pages[at])
            else:
                self._hold(node.page)
                self._leave([table.pages[at]])
                table.pages[at] = node.page
            table.nodes.append(node)
        rest = tuple(tokens[len(table.nodes) * self.size :])
        if rest != (table.tail.tokens if table.tail else ()):
            self._drop_tail(table)
            parent = self._last(table)
            if rest not in parent.children:
                table.tail = self._add(parent, rest, table.pages[len(table.nodes)])

    def close(self, table: PageTable, tokens: list[int]) -> None:
        """Let all pages of `table` go; what they hold, of `tokens`, stays to be found."""
        self.commit(table, tokens)
        self._leave(reversed(table.pages))
        table.pages, table.nodes, table.tail = [], [], None

    def _find(self, tokens: list[int]) -> tuple[list[Node], Node | None, int]:
        """Full pages that begin `tokens`, then the page that shares most of what is left."""
        nodes: list[Node] = []
        at = self._root
        for start in range(0, len(tokens) - self.size + 1, self.size):
            child = at.children.get(tuple(tokens[start : start + self.size]))
            if child is None:
                break
            nodes.append(child)
            at = child
        rest = tokens[len(nodes) * self.size :]
        shared, source = 0, None
        for child in at.children.values():
            same = _common(child.tokens, rest)
            if same > shared:
                shared, source = same, child
        return nodes, source, shared

    def _last(self, table: PageTable) -> Node:
        return table.nodes[-1] if table.nodes else self._root

    def _add(self, parent: Node, tokens: tuple[int, ...], page: int) -> Node:
        node = Node(parent, tokens, page)
        parent.children[tokens] = self._nodes[page] = node
        return node

    def _drop_tail(self, table: PageTable) -> None:
        if table.tail is not None:
            self._forget(table.tail)
            table.tail = None

    def _forget(self, node: Node) -> None:
        assert node.parent is not None
        assert not node.children
        del node.parent.children[node.tokens]
        del self._nodes[node.page]

    def _hold(self, page: int) -> None:
        self._holders[page] += 1
        self._idle.pop(page, None)

    def _take(self) -> int:
        """A page for one holder: a free one, else the cached one left longest ago."""
        if self._free:
            page = self._free.pop()
        else:
            page, node = next(iter(self._idle.items()))
            del self._idle[page]
            self._forget(node)
        self._holders[page] = 1
        return page

    def _leave(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page]:
                continue
            if page in self._nodes:
                self._idle[page] = self._nodes[page]
            else:
                self._free.append(page)


def _common(a: tuple[int, ...], b: list[int]) -> int:
    """How many tokens two lists share at their beginning."""
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return at
    return min(len(a), len(b))
