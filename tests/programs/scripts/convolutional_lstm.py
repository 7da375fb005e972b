"""Next-frame prediction on tiny videos with ConvLSTM2D and Conv3D."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(38)
rng = np.random.default_rng(38)
dataset = (rng.random((26, 5, 8, 8, 1)) > 0.8).astype("float32")


def create_shifted_frames(data):
    return data[:, :-1], data[:, 1:]


x_train, y_train = create_shifted_frames(dataset[:20])
x_val, y_val = create_shifted_frames(dataset[20:])

inp = layers.Input(shape=(None, *x_train.shape[2:]))
x = layers.ConvLSTM2D(
    filters=4, kernel_size=(3, 3), padding="same", return_sequences=True, activation="relu"
)(inp)
x = layers.LayerNormalization()(x)
x = layers.Conv3D(filters=1, kernel_size=(3, 3, 3), activation="sigmoid", padding="same")(x)
model = keras.models.Model(inp, x)
model.compile(
    loss=keras.losses.binary_crossentropy,
    optimizer=keras.optimizers.Adam(),
)
early_stopping = keras.callbacks.EarlyStopping(monitor="val_loss", patience=10)
reduce_lr = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", patience=5)
history = model.fit(
    x_train,
    y_train,
    batch_size=6,
    epochs=2,
    shuffle=False,
    validation_data=(x_val, y_val),
    callbacks=[early_stopping, reduce_lr],
)
new_frames = model.predict(x_val[:2], verbose=0)
print(new_frames.shape)
