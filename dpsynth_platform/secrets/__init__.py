"""The vault of keys and its backends: files, a program, or a cloud's secret manager.

What belongs here: one class per keeper (`files`, `program`, `aws`, `google`), their choice (`choice`) and the `vault`.
What does not: uses of keys. Only `files` writes keys to this machine's disk; no keeper holds one between two calls.
"""
