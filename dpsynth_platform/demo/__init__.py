"""The demonstration sources: fictional people, made where the platform is tried out.

What belongs here: making the source tables that the contracts `census` and `visits` name. What does not: anything that
handles real data. Everything here is deterministic, from fixed seeds, so that a demonstration can be repeated and
compared; nothing of it protects anyone, so this is the one place in the product where a seed is right.
"""
