"""Layers of Keras that a step computes in another way than Keras does."""
