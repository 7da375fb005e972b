"""Small models with methods of their own, for the probes of the census."""

import keras
import tensorflow as tf


def dense():
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])


class Small(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)


class TrainStep(Small):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class TestStep(Small):
    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        return self.compute_metrics(x, y, y_pred)


class PredictStep(Small):
    def predict_step(self, data):
        return self(data, training=False) + 1.0


class ComputeLoss(Small):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.abs(y - y_pred))


class ComputeMetrics(Small):
    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        return results | {"constant": 1.0}


class Fit(Small):
    def fit(self, *args, **kwargs):
        return super().fit(*args, **kwargs)

    def evaluate(self, *args, **kwargs):
        return super().evaluate(*args, **kwargs)

    def predict(self, *args, **kwargs):
        return super().predict(*args, **kwargs)


class TrainFunction(Small):
    def make_train_function(self, force=False):
        return super().make_train_function(force)


class Adversarial(Small):
    """Two optimizers and two updates in one step."""

    def __init__(self):
        super().__init__()
        self.other = keras.layers.Dense(1)
        self.other_optimizer = keras.optimizers.SGD(0.01)

    def call(self, x):
        return self.other(self.dense(x))

    def _update(self, x, y, layer, optimizer):
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(y - self(x)))
        weights = layer.trainable_weights
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return loss

    def train_step(self, data):
        x, y = data
        first = self._update(x, y, self.other, self.other_optimizer)
        second = self._update(x, y, self.dense, self.optimizer)
        return {"first": first, "second": second}


class Looping(Adversarial):
    def train_step(self, data):
        x, y = data
        for _ in range(2):
            loss = self._update(x, y, self.other, self.other_optimizer)
        return {"loss": loss}


class Conditional(Adversarial):
    def train_step(self, data):
        x, y = data
        loss = keras.ops.mean(keras.ops.square(y - self(x)))

        def update():
            return self._update(x, y, self.dense, self.optimizer)

        return {"loss": tf.cond(loss > 0.0, update, lambda: loss)}


class Noisy(TrainStep):
    def train_step(self, data):
        x, y = data
        return super().train_step((x + tf.random.normal(tf.shape(x)), y))


class PersistentTape(Adversarial):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            loss = keras.ops.mean(keras.ops.square(y - self(x)))
        first = tape.gradient(loss, self.other.trainable_weights)
        second = tape.gradient(loss, self.dense.trainable_weights)
        del tape
        self.other_optimizer.apply(first, self.other.trainable_weights)
        self.optimizer.apply(second, self.dense.trainable_weights)
        return {"loss": loss}


class CompiledLoss(Small):
    """Uses names of Keras 2 that Keras 3 keeps for TensorFlow."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.compiled_metrics.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


class Seeded(Small):
    """Draws in its own layer, as samplers and augmentations do."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        return self.dense(x + keras.random.normal(keras.ops.shape(x), seed=self.seeds))


class Penalized(Small):
    def call(self, x):
        answer = self.dense(x)
        self.add_loss(1e-3 * keras.ops.mean(keras.ops.square(answer)))
        return answer


KINDS = {
    "train_step": "TrainStep",
    "test_step": "TestStep",
    "predict_step": "PredictStep",
    "compute_loss": "ComputeLoss",
    "compute_metrics": "ComputeMetrics",
    "fit": "Fit",
    "evaluate": "Fit",
    "predict": "Fit",
    "make_train_function": "TrainFunction",
}
