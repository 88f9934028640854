"""Tables through noisy marginals and a graphical model.

What belongs in this package: the public domain of the columns (`domain`), the source's schema given back (`restore`),
exact inference on trees (`inference`), the MST mechanism (`mechanism`, `mst`), the fitted model (`model`) and sampling
from it (`sampling`). What does not: text, images or graphs.
"""
