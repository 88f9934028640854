"""Audits outside of an asset line: of any scores, models, tables and texts."""
