"""What is done with a finished run: opened again, joined by a new client, asked for scores."""
