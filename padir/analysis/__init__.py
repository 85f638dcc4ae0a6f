"""Looking into a model: traces of a decode, attention, dependency between positions, refinement."""
