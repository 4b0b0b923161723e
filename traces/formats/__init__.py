"""The trace formats: one layout each, recognised by their content."""
