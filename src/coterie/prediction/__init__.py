"""Prediction: the models that a run keeps, and what they say of new rows."""
