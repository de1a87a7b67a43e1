"""Federations by what makes their clients differ, one family per file."""
