"""Results on disk: journal, sealed tables, ledger, and the answer computed from them."""
