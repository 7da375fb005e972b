"""Two outputs with dictionaries of losses, loss weights, metrics, targets and sample weights."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(30)
rng = np.random.default_rng(30)
x = rng.normal(size=(83, 7)).astype("float32")
priority = (x[:, :1] > 0).astype("float32")
department = np.eye(3)[rng.integers(0, 3, 83)].astype("float32")

inputs = keras.Input(shape=(7,), name="ticket")
shared = layers.Dense(16, activation="relu")(inputs)
priority_pred = layers.Dense(1, name="priority")(shared)
department_pred = layers.Dense(3, name="department")(shared)
model = keras.Model(inputs, {"priority": priority_pred, "department": department_pred})
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"department": ["accuracy"], "priority": [keras.metrics.MeanAbsoluteError()]},
)
history = model.fit(
    {"ticket": x},
    {"priority": priority, "department": department},
    sample_weight={
        "priority": np.linspace(0.5, 1.5, 83),
        "department": np.linspace(2.0, 0.1, 83),
    },
    epochs=3,
    batch_size=32,
    shuffle=False,
    verbose=2,
)
scores = model.evaluate(x, {"priority": priority, "department": department}, return_dict=True)
answers = model.predict(x, verbose=0)
print(scores, {name: array.shape for name, array in answers.items()})
