"""How long sensitive data stay: retention, purging, erasure, legal holds and owner keys."""
