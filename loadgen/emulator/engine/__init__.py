"""A continuous-batching engine without I/O or clock, its KV cache, and the profiles that describe one."""
