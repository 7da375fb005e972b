"""The best epochs of a training: which they are, and their models."""
