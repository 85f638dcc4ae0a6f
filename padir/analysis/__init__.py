"""Looking into a decode: traces of its steps."""
