"""Notices to external receivers: their content, their receivers, and their delivery."""
