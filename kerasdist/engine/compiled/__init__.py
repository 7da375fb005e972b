"""Functions that are compiled once and serve any caller, and what they are assembled from."""
