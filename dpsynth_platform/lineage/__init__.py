"""Lineage: what ran, on what, and what came of it, as OpenLineage events.

What belongs here: the names of datasets, jobs and runs, the facets, the emitter with the platform's own record of
events, the graph read back from that record, and what an error may say about itself. What does not: deciding anything
from lineage (clearance does), and transport settings (OpenLineage's own client reads its standard configuration).
"""
