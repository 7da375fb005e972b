"""Keras's own example scripts: a census of what they ask for, and real runs with made-up data."""
