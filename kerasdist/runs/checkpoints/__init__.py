"""Checkpoints: saved completely or not at all, and verified before they are used.

A checkpoint is a folder such as `step-00001200`. It holds `arrays.bin` (the raw bytes of the
arrays) and `manifest.json` (their description, with the sha256 of everything). `contents` says
what is in it, `manifests` defines the format, `store` commits and keeps checkpoints, and `recovery`
decides when a run saves and where it resumes.
"""

from kerasdist.runs.checkpoints.files import Files
from kerasdist.runs.checkpoints.store import Checkpoint, Store

__all__ = ["Checkpoint", "Files", "Store"]
