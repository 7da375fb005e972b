"""Checkpoints: committed whole or not at all, and verified before anything of them is used.

A checkpoint is a folder `step-00001200` with `arrays.bin`, the raw bytes of the arrays, and
`manifest.json`, which says what they are and has the sha256 of everything. `manifests` knows the
format, `store` the commit protocol.
"""

from kerasdist.runs.checkpoints.files import Files
from kerasdist.runs.checkpoints.store import Checkpoint, Store

__all__ = ["Checkpoint", "Files", "Store"]
