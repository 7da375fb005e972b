"""A loss as a plain function and another as a class with settings, on two compiles."""

import math

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(44)
rng = np.random.default_rng(44)
x = rng.normal(size=(76, 5)).astype("float32")
y = (np.sin(x[:, :1]) + 0.1 * rng.normal(size=(76, 1))).astype("float32")


def mean_log_cosh(y_true, y_pred):
    error = y_pred - y_true
    return ops.mean(error + ops.softplus(-2.0 * error) - math.log(2.0), axis=-1)


class CustomMSE(keras.losses.Loss):
    def __init__(self, regularization_factor=0.1, name="custom_mse"):
        super().__init__(name=name)
        self.regularization_factor = regularization_factor

    def call(self, y_true, y_pred):
        mse = ops.mean(ops.square(y_true - y_pred), axis=-1)
        reg = ops.mean(ops.square(0.5 - y_pred), axis=-1)
        return mse + reg * self.regularization_factor


def get_model():
    inputs = keras.Input((5,))
    return keras.Model(inputs, layers.Dense(1)(layers.Dense(12, activation="tanh")(inputs)))


first = get_model()
first.compile(optimizer=keras.optimizers.Adam(1e-2), loss=mean_log_cosh)
first_history = first.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=2)

second = get_model()
second.compile(optimizer=keras.optimizers.Adamax(1e-2), loss=CustomMSE(), metrics=[mean_log_cosh])
second_history = second.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=2)
print(first_history.history, second_history.history)
