"""The pages of lineage: a part of the graph, a path between two nodes, search, one node, and one column.

What belongs in this package: reading the stored graph for an actor: around a node (`around`), paths and search
(`finding`), one node's records (`facets`), columns and what is drawn from them (`columns`), and what all of these show
of a node (`nodes`). What does not: walking the
graph (`lineage.neighbourhood`), judging it (`lineage.clearance`), and drawing (`pages`).
"""

from dpsynth_platform.console.views.lineage.around import DEEPEST, GraphView, graph
from dpsynth_platform.console.views.lineage.columns import ColumnsView, TraceView, columns, trace
from dpsynth_platform.console.views.lineage.facets import NodeView, node
from dpsynth_platform.console.views.lineage.finding import PathView, SearchView, path, search
from dpsynth_platform.console.views.lineage.nodes import GraphNode

__all__ = [
    "DEEPEST",
    "ColumnsView",
    "GraphNode",
    "GraphView",
    "NodeView",
    "PathView",
    "SearchView",
    "TraceView",
    "columns",
    "graph",
    "node",
    "path",
    "search",
    "trace",
]
