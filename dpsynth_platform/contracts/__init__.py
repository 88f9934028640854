"""Contracts and family budgets: what a person declares about a dataset, in YAML."""
