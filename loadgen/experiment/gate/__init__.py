"""Gates: one rate and nothing else, or the runs of a baseline again (docs/gate.md)."""
