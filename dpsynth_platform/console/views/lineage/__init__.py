"""The pages of lineage: a part of the graph, a way between two nodes, search, and one node.

What belongs in this package: reading the stored graph for somebody with certain actions: what lies around a node
(`around`), ways and search (`finding`), what is recorded of one (`facets`), and what all three tell of each (`nodes`).
What does not: walking the graph (`lineage.neighbourhood`), judging it (`lineage.clearance`), and drawing (`pages`).
"""

from dpsynth_platform.console.views.lineage.around import DEEPEST, GraphView, graph
from dpsynth_platform.console.views.lineage.facets import NodeView, node
from dpsynth_platform.console.views.lineage.finding import PathView, SearchView, path, search
from dpsynth_platform.console.views.lineage.nodes import GraphNode

__all__ = ["DEEPEST", "GraphNode", "GraphView", "NodeView", "PathView", "SearchView", "graph", "node", "path", "search"]
