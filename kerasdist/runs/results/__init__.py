"""What a run came to: its best models, and the number that people look at."""
