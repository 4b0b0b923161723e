"""What a run sends, decided before it starts: seeds, arrivals, lengths, prompts. Pure: no clock, no sockets."""
