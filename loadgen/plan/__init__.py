"""What will be sent, decided before anything is: seeds, arrivals, lengths, prompts. Pure: no clock, no sockets."""
