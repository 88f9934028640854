"""The demonstration sources: fictional people, and public data, made where the platform is tried out.

What belongs here: source tables of the contracts `census`, `visits`, `mail`, `flights` and `images`. What does not:
data that is not public. Tables are deterministic, from fixed seeds or checked downloads; fixed seeds are allowed only
here, since no privacy depends on them. The people in `mail` are real, and the platform protects them as such.
"""
