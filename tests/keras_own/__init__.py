"""Keras's own tests of `fit` and of callbacks, run through kerasdist."""
