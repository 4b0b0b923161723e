"""What a server's metrics say about a run: their types, the readings of one run, and the checks against the client."""
