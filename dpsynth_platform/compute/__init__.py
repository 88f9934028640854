"""The SQL engines that large steps run on.

What belongs here: opening an engine safely (memory, spill files, no way out to files or networks) and moving Arrow data
in and out of it. What does not: the SQL itself, which stands with the step that it belongs to and keeps to what both
DuckDB and Spark accept.
"""
