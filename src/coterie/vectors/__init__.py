"""Pure algebra on flat parameters."""
