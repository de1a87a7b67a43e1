"""Federations from the user's own tables, folders and datasets."""
