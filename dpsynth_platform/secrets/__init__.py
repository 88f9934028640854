"""What keeps the keys of a vault: files of its directory, a program, or a cloud's secret manager.

What belongs here: one small class a keeper (`files`, `program`, `aws`, `google`) and which of them a vault has
(`choice`). What does not: when a key is made, what it is for (`vault`), and keeping a copy: no keeper writes a key to
this machine's disk but `files`, none holds one between two calls.
"""
