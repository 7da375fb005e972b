"""A KerasHub GPT-2 CausalLM with a tokenizer made in memory: fine-tuned on strings, with LoRA."""

import keras
import keras_hub
import numpy as np
import tensorflow as tf

keras.utils.set_random_seed(76)
rng = np.random.default_rng(76)
merges = ["Ġ a", "a i", "ai r", "p l", "pl a", "n e", "pla ne", "Ġa i", "Ġai r", "Ġa t"]
merges += ["p o", "r t", "po rt"]
pieces = ["Ġ", *"ailnoprte", *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
vocabulary = {token: index for index, token in enumerate(pieces)}
tokenizer = keras_hub.models.GPT2Tokenizer(vocabulary=vocabulary, merges=merges)
preprocessor = keras_hub.models.GPT2CausalLMPreprocessor(tokenizer, sequence_length=8)
backbone = keras_hub.models.GPT2Backbone(
    vocabulary_size=tokenizer.vocabulary_size(),
    num_layers=1,
    num_heads=2,
    hidden_dim=8,
    intermediate_dim=16,
    max_sequence_length=8,
    dropout=0.0,
)
gpt2_lm = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=preprocessor)
gpt2_lm.backbone.enable_lora(rank=2)
gpt2_lm.compile(
    optimizer=keras.optimizers.Adam(
        keras.optimizers.schedules.PolynomialDecay(5e-3, decay_steps=6, end_learning_rate=0.0)
    ),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    weighted_metrics=["accuracy"],
)
words = ["airplane", " at", " airport"]
texts = ["".join(rng.choice(words, 3)) for _ in range(21)]
dataset = tf.data.Dataset.from_tensor_slices(texts).batch(8)
history = gpt2_lm.fit(dataset, epochs=2, verbose=2)
print(history.history)
