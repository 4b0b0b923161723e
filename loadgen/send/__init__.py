"""The hot path: an open-loop dispatcher, the transports, and the stamps they leave."""
