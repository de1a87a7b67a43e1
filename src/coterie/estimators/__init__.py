"""Estimators of scikit-learn over coterie."""
