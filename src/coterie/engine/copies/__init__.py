"""Copies of a run that differ in start or settings, trained side by side in one pass."""
