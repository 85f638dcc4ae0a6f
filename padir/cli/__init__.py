"""The commands of the command line, by what they do: options, what they mean, and the calls."""
