"""The SQL engines that large steps run on.

What belongs here: opening an engine safely (memory, spill files, no way out to files or networks) and moving Arrow data
in and out of it. What does not: the SQL itself, which is in the steps' modules and uses only what DuckDB and Spark both
accept.
"""
