"""The generators behind one interface: `interface`, `tabular`, `text`, and `mock` (a table from a contract alone).

What does not belong here: the origin of the data (`bounding`), a mechanism's cost (`privacy`), its process (`worker`).
"""
