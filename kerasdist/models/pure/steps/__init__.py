"""A model's own `train_step`, `test_step` or `predict_step` as a pure function of its state."""
