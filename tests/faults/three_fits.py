"""A Keras script with three fits, which `tests.faults.scripts` kills.

It knows nothing of kerasdist. It trains an autoencoder, a classifier on its frozen encoder, and
fine-tunes all of it. It saves nothing. What it prints must not depend on how often it was killed.
"""

import hashlib
import os
import time

import keras
import numpy as np

PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "0.005"))


class Pause(keras.callbacks.Callback):
    """Makes steps last long enough to be struck."""

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(PAUSE_SECONDS)


class Samples(keras.callbacks.Callback):
    """Draws random numbers at the end of each epoch, as many examples do to show pictures."""

    def __init__(self):
        super().__init__()
        self.losses = []

    def on_epoch_end(self, epoch, logs=None):
        np.random.normal(size=3)
        keras.random.normal((2,))
        self.losses.append(logs["loss"])


def digest(model):
    return hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()


keras.utils.set_random_seed(7)
x = np.random.normal(size=(331, 12)).astype("float32")
labels = (x[:, 0] * x[:, 1] > 0).astype("int32")

encoder = keras.Sequential([keras.Input((12,)), keras.layers.Dense(8, activation="tanh")])
autoencoder = keras.Sequential([encoder, keras.layers.Dense(12)])
autoencoder.compile("adam", "mse")
samples = Samples()
history = autoencoder.fit(x, x, batch_size=16, epochs=3, verbose=0, callbacks=[Pause(), samples])
print("pretrained:", history.history, samples.losses, digest(autoencoder))

encoder.trainable = False
classifier = keras.Sequential(
    [
        encoder,
        keras.layers.Dropout(0.3),
        keras.layers.Dense(16, activation="relu"),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
loss, metrics = "sparse_categorical_crossentropy", ["accuracy"]
classifier.compile(keras.optimizers.Adam(0.05), loss, metrics=metrics)
stop = keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)
history = classifier.fit(
    x,
    labels,
    batch_size=16,
    epochs=8,
    validation_split=0.2,
    verbose=0,
    callbacks=[stop, Pause(), samples],
)
print("classifier:", history.history, history.epoch, history.params, digest(classifier))
print("losses of both:", samples.losses)
print("stopped:", stop.stopped_epoch, stop.best, stop.wait, classifier.stop_training)
print("evaluated:", classifier.evaluate(x, labels, verbose=0))
print("drawn:", np.random.normal(), keras.random.normal((2,)).numpy())

encoder.trainable = True
classifier.compile(keras.optimizers.SGD(0.001, momentum=0.9), loss, metrics=metrics)
history = classifier.fit(x, labels, batch_size=32, epochs=3, verbose=0, callbacks=[Pause()])
print("fine-tuned:", history.history, digest(classifier))
print("evaluated:", classifier.evaluate(x, labels, verbose=0, return_dict=True))
print("predicted:", classifier.predict(x[:3], verbose=0).tolist())
