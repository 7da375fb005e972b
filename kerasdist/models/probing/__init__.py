"""Evaluates parts of the first batch, to see what may be computed on parts."""
