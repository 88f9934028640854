"""A Flower app without data, keys or plans: it forwards bytes to a local socket, and has no dependency but Flower."""
