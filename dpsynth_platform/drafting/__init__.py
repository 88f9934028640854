"""Drafts of contracts: what is public about a table, and questions for the rest."""
