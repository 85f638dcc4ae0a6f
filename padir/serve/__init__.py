"""`padir serve`: a model behind HTTP, and a page that shows how it refines.

`Engine` (`padir.serve.engine`) batches the sentences of all clients, `make_app` (`padir.serve.app`) is the ASGI
application with the page, `serve` (`padir.serve.server`) runs it. All need the extra `serve`.
"""

from padir.serve.batching import Batcher
from padir.serve.messages import Limits, Refused, TranslateRequest

__all__ = ["Batcher", "Limits", "Refused", "TranslateRequest"]
