"""lower: from the graph to a program in which every op is a call of its own.

Before      %y = rms_norm(%x, %w) {eps=1e-05} : f32[1,64]
After       kernel @rms_norm(%x, %w) -> (%y) { stage %s0 after %entry { part tile 1 { … } } }
            %y = call @rms_norm(%x, %w)
Requires    nothing
Why         It is the bottom of the ladder, and the form in which every other engine runs a model.
"""

from hotloop.ir.graph import Graph
from hotloop.ir.outline import outline
from hotloop.ir.program import Program


def lower(graph: Graph) -> Program:
    return outline(graph, [("", [op]) for op in graph.ops])
