"""On PYTHONPATH, this gives fake GPUs to every `kerasdist fit`, also to those of a launcher."""

import os
import sys

if "fit" in sys.orig_argv and int(os.environ.get("KERASDIST_FAKE_GPUS", "0")):
    from tests.gpu import fake_gpu

    fake_gpu.load()
    fake_gpu.without_nccl()
