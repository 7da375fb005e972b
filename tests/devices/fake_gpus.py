"""A TensorFlow that has not started and sees GPUs: the decisions before the start, without one."""

from types import SimpleNamespace

import tensorflow as tf

from kerasdist.devices import private_tensorflow, visible_gpus


def present(monkeypatch, count):
    """Replaces what TensorFlow says of GPUs; returns what was set for them.

    `visible` are the numbers of the visible GPUs, `growth` those with memory growth, and `limits`
    the limits in MB by number.
    """
    gpus = [SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(count)]
    cpus = tf.config.list_physical_devices("CPU")
    done = SimpleNamespace(visible=list(range(count)), growth=[], limits={})

    def visible(kind=None):
        return [gpus[i] for i in done.visible] if kind == "GPU" else cpus

    def show(devices, kind):
        assert kind == "GPU"
        done.visible = [gpus.index(device) for device in devices]

    def configured(device):
        return [None] * 6 if device in cpus else done.limits.get(gpus.index(device))

    def grow(gpu, value):
        assert value
        done.growth.append(gpus.index(gpu))

    def limit(gpu, made):
        done.limits[gpus.index(gpu)] = [each.memory_limit for each in made]

    config = tf.config
    monkeypatch.setattr(
        config, "list_physical_devices", lambda kind=None: gpus if kind == "GPU" else cpus
    )
    monkeypatch.setattr(config, "get_visible_devices", visible)
    monkeypatch.setattr(config, "set_visible_devices", show)
    monkeypatch.setattr(config, "get_logical_device_configuration", configured)
    monkeypatch.setattr(config, "set_logical_device_configuration", limit)
    monkeypatch.setattr(config.experimental, "set_memory_growth", grow)
    monkeypatch.setattr(private_tensorflow, "has_started", lambda: False)
    monkeypatch.setattr(visible_gpus, "_kept", None)
    return done
