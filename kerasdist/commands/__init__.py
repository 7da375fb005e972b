"""What the commands do, once their options are parsed; one module each."""

import tensorflow as tf

from kerasdist.commands.bench import bench
from kerasdist.commands.devices import devices
from kerasdist.commands.doctor import doctor
from kerasdist.commands.evaluate import evaluate
from kerasdist.commands.export import export
from kerasdist.commands.fit import fit
from kerasdist.commands.predict import predict
from kerasdist.commands.verify import verify

__all__ = ["bench", "devices", "doctor", "evaluate", "export", "fit", "predict", "verify"]

# Said here and not at the first use: TensorFlow's messages about it are still held back.
tf.config.list_physical_devices()
