"""The lifetime of sensitive data: retention, purging, erasure, legal holds and owner keys."""
