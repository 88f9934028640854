"""Quality of synthetic texts, after SynBench (section 3) and the guide (section 5.6).

The kinds of measures are theirs; models and cells are smaller, so figures are not comparable with theirs. Everything
here reads real texts outside the guarantee. Results are restricted: for reviewers, never for automatic gates, and never
published.
"""
