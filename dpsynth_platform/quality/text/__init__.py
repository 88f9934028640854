"""Quality of synthetic texts beside real ones, after SynBench (section 3) and the guide (section 5.6).

Kinds of measures are theirs; models and cells are smaller ones of our own, so figures are not comparable with theirs.

Everything here reads real texts outside the guarantee. Its results are restricted: for reviewers, never for a gate that
acts on its own and never for what is published.
"""
