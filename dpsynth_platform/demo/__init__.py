"""The demonstration sources: fictional people, and public data, made where the platform is tried out.

What belongs here: making the source tables that the contracts `census`, `visits`, `mail` and `flights` name. What does
not: anything that handles data that is not public. Everything here is deterministic, from fixed seeds or checked
downloads, so that a demonstration can be repeated and compared; nothing of it protects anyone, so this is the one place
in the product where a seed is right. The people in `mail` are real, and what comes after treats them so.
"""
