"""Lineage: OpenLineage events of all runs, and the graph that follows from them.

What belongs here: names of datasets, jobs and runs, facets, the emitter, the record of events, the stored graph, the
receiver of other producers' events, and clearance. What does not: transport settings (OpenLineage's own client reads
its standard configuration).
"""
