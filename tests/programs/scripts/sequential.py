"""A Sequential classifier without an input shape, with one-hot targets and several metrics."""

import keras
import numpy as np
from keras.layers import Activation, Dense
from keras.models import Sequential
from keras.utils import to_categorical

keras.utils.set_random_seed(2)
rng = np.random.default_rng(2)
x = rng.random((101, 9))
labels = np.argmax(x[:, :3], axis=1)
y = to_categorical(labels, num_classes=3)

model = Sequential()
model.add(Dense(24))
model.add(Activation("tanh"))
model.add(Dense(24, activation="gelu", kernel_regularizer="l2"))
model.add(Dense(3, activation="softmax"))
model.compile("adam", "categorical_crossentropy", metrics=["accuracy", "auc"])

history = model.fit(x, y, epochs=3, validation_data=(x[:20], y[:20]), shuffle=False, verbose=0)
for epoch, loss in enumerate(history.history["loss"]):
    print(f"epoch {epoch}: loss {loss:.4f}")

score = model.evaluate(x, y, return_dict=True, verbose=0)
print(score)
classes = np.argmax(model.predict(x, batch_size=64, verbose=0), axis=-1)
print("first classes:", classes[:10])
