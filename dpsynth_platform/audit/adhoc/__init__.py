"""Audits outside of an asset line: of scores, models, tables and texts of any origin."""
