"""Comparisons: a search for each variant, then paired runs of all (method, section 8)."""
