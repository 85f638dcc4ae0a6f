"""`padir serve`: a model behind HTTP, and the page that shows how it refines."""
