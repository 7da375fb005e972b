"""Keras optimizers that write where the variables are stored."""
