"""The generators: how synthetic rows are made, behind one interface.

What belongs in this package: `interface` (what every generator offers), `tabular` (tables through graphical models),
`text` (texts by private fine-tuning of a language model) and `mock` (a fictional table made from a contract alone).
What does not: where the data comes from (`bounding`), what a mechanism costs (`privacy`), and the process that it runs
in (`worker`).
"""
