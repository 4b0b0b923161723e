"""One plan sent by several processes (docs/adr/0026)."""
