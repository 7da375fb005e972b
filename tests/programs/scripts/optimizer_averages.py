"""An optimizer that keeps moving averages of the weights and uses them after training."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(55)
rng = np.random.default_rng(55)
x = rng.normal(size=(69, 6)).astype("float32")
y = (x[:, :2].sum(axis=1) > 0).astype("int32")

model = keras.Sequential(
    [keras.Input((6,)), layers.Dense(12, activation="relu"), layers.Dense(2, activation="softmax")]
)
model.compile(
    optimizer=keras.optimizers.AdamW(
        1e-2, weight_decay=1e-3, use_ema=True, ema_momentum=0.9, global_clipnorm=1.0
    ),
    loss="sparse_categorical_crossentropy",
    metrics=["accuracy"],
)
history = model.fit(
    x,
    y,
    batch_size=16,
    epochs=3,
    shuffle=False,
    validation_data=(x, y),
    callbacks=[keras.callbacks.SwapEMAWeights(swap_on_epoch=False)],
    verbose=2,
)
averaged = model.evaluate(x, y, verbose=0, return_dict=True)
print(averaged, history.history)
