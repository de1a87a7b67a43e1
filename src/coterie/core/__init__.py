"""The vocabulary: clients, cohorts, tasks, algorithms, seeds and errors."""
