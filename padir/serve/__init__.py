"""`padir serve`: an HTTP server for translation, with a page that shows how a model refines its drafts."""
