"""What is written and shown: capacity.json, tables, statistics by length and over repeated experiments."""
