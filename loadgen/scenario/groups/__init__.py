"""A scenario's settings by what they are about: each with its kind, default, bounds and help."""
