"""The version of coterie."""

__version__ = "0.1.0"
