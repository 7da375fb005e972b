"""`kerasdist doctor --gpu`: the report of a first day with GPUs."""
