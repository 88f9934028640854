"""Drafts of contracts from a table's schema, and questions about the rest."""
