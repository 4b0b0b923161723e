"""Reports: capacity.json, tables, statistics by length and over repeated experiments."""
