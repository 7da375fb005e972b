"""A policy gradient on a small walk: episodes by predict_on_batch, updates by train_on_batch."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(59)
rng = np.random.default_rng(59)
num_actions, horizon = 2, 7

policy = keras.Sequential(
    [
        keras.Input((3,)),
        layers.Dense(12, activation="relu"),
        layers.Dense(num_actions, activation="softmax"),
    ]
)


def policy_loss(actions, probabilities):
    return -ops.sum(actions * ops.log(probabilities + 1e-7), axis=-1)


policy.compile(optimizer=keras.optimizers.Adam(1e-2), loss=policy_loss)
value = keras.Sequential([keras.Input((3,)), layers.Dense(12, activation="relu"), layers.Dense(1)])
value.compile(optimizer=keras.optimizers.Adam(1e-2), loss="huber")

episode_rewards, policy_losses, value_losses = [], [], []
for _ in range(5):
    position, states, actions, rewards = 0.0, [], [], []
    for time in range(horizon):
        state = np.array([position, time / horizon, 1.0])
        probabilities = policy.predict_on_batch(state[None])[0]
        # A draw that rounding in the probabilities cannot turn.
        action = int(rng.random() > round(float(probabilities[0]), 3))
        position += 1.0 if action == 1 else -1.0
        states.append(state)
        actions.append(np.eye(num_actions)[action])
        rewards.append(-abs(position - 3.0))
    returns = np.cumsum(rewards[::-1])[::-1][:, None]
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    baseline = value.predict_on_batch(np.array(states))
    advantage = (returns - baseline)[:, 0]
    value_losses.append(float(value.train_on_batch(np.array(states), returns)))
    policy_losses.append(
        float(policy.train_on_batch(np.array(states), np.array(actions), sample_weight=advantage))
    )
    episode_rewards.append(sum(rewards))
print(episode_rewards, policy_losses, value_losses)
test = value.test_on_batch(np.array(states), returns, return_dict=True)
print(test)
