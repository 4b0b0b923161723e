"""What will be sent, decided before anything is: seeds, arrival instants, lengths, prompts. Pure: no clock, no sockets."""
