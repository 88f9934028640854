"""Notices to people outside: what they say, who receives them, and how they are sent."""
