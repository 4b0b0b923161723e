"""The trace formats: one layout each, told apart by their content."""
