"""Runs: settings, the rounds of a simulation, the folder they leave."""
