"""Learning-rate schedules: cosine with warm-up, one of our own, and a scheduler callback."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(48)
rng = np.random.default_rng(48)
x = rng.normal(size=(70, 5)).astype("float32")
y = (x @ rng.normal(size=(5, 2))).astype("float32")


@keras.saving.register_keras_serializable()
class NoamSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, width, warmup_steps=6):
        super().__init__()
        self.width = width
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = ops.cast(step, keras.config.floatx()) + 1
        scale = ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)
        return self.width**-0.5 * scale

    def get_config(self):
        return {"width": self.width, "warmup_steps": self.warmup_steps}


def train(learning_rate, callbacks=()):
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(8, activation="selu"), layers.Dense(2)]
    )
    model.compile(optimizer=keras.optimizers.Adam(learning_rate), loss="mse")
    history = model.fit(
        x, y, batch_size=16, epochs=3, shuffle=False, verbose=0, callbacks=list(callbacks)
    )
    return model, history


cosine = keras.optimizers.schedules.CosineDecay(
    1e-4, decay_steps=10, warmup_target=1e-2, warmup_steps=5
)
cosine_model, cosine_history = train(cosine)
noam_model, noam_history = train(NoamSchedule(64))
stairs = keras.optimizers.schedules.PiecewiseConstantDecay([4, 9], [1e-2, 1e-3, 1e-4])
stairs_model, stairs_history = train(stairs)
scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, lr: lr if epoch < 1 else lr * 0.5)
called_model, called_history = train(1e-2, [scheduler])
print(cosine_history.history, noam_history.history, called_history.history)
