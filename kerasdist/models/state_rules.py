"""How the state that a forward pass changes is put together from the shards of a batch."""

# How the new values of a state variable in the shards make the one of the whole batch: their mean
# by examples, the same in all of them (then shard 0's), or the old value plus all changes.
MEAN, SAME, SUM = "mean", "same", "sum"
