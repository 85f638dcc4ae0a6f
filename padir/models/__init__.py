"""The transformer, its parameters and its directory."""
