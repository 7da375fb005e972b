"""What is remembered of a model between two calls."""
