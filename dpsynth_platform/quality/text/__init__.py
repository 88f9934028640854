"""Quality of synthetic texts beside real ones: the measures of SynBench (section 3) and of the guide (section 5.6).

Everything here reads real texts outside the guarantee. Its results are restricted: for reviewers, never for a gate that
acts on its own and never for what is published.
"""
