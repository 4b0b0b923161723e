"""Results on disk: journal, sealed tables, ledger, and what they add up to."""
