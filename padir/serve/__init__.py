"""`padir serve`: a model behind HTTP, and a page that shows how it refines.

`Engine` (`padir.serve.engine`) batches the sentences of all clients, `make_app` (`padir.serve.app`) is the ASGI
application, `serve` (`padir.serve.server`) runs it; these three need the extra `serve`. Requests and their limits, and
the queue, need nothing more than padir.
"""

from padir.serve.batching import Batcher
from padir.serve.request import Limits, Options, Refused, Request, read_request

__all__ = ["Batcher", "Limits", "Options", "Refused", "Request", "read_request"]
