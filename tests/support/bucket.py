"""An object store on disk, for addresses gs://: it renames and appends nothing, and fails on demand."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem


def nothing(operation: str, name: str) -> None:
    """The store answers."""


class Bucket(LocalFileSystem):
    """Every file of gs://NAME is the file of that name in `root`.

    Attributes:
      calls: (operation, file) of every call that sends, fetches or removes a file.
      before: called before each of them; raises to make the call fail.
    """

    protocol = ("gs", "gcs")
    cachable = False
    root = Path(os.environ.get("BUCKETS", "/nowhere"))
    before: Callable[[str, str], None] = staticmethod(nothing)
    calls: list[tuple[str, str]] = []
    lock = threading.RLock()

    @classmethod
    def fail(cls, error, *operations):
        """Lets these operations, or all, raise an error from now on."""

        def before(operation, name):
            if not operations or operation in operations:
                raise error

        cls.before = staticmethod(before)

    def __init__(self, **settings):
        super().__init__(auto_mkdir=True, **settings)

    @classmethod
    def _strip_protocol(cls, path):
        path = os.fspath(path)
        for prefix in ("gs://", "gcs://"):
            if path.startswith(prefix):
                path = str(cls.root / path.removeprefix(prefix))
        return path.rstrip("/")

    def _called(self, operation, path):
        name = os.path.relpath(self._strip_protocol(path), self.root)
        with self.lock:
            self.calls.append((operation, name))
            type(self).before(operation, name)

    def put_file(self, lpath, rpath, **settings):
        self._called("put", rpath)
        super().put_file(lpath, rpath, **settings)

    def pipe_file(self, path, value, **settings):
        self._called("put", path)
        super().pipe_file(path, value, **settings)

    def get_file(self, rpath, lpath, **settings):
        self._called("get", rpath)
        super().get_file(rpath, lpath, **settings)

    def cat_file(self, path, **settings):
        self._called("read", path)
        return super().cat_file(path, **settings)

    def rm(self, path, **settings):
        self._called("remove", path)
        super().rm(path, **settings)

    def mv(self, *_, **__):
        raise NotImplementedError("an object store renames nothing")

    def _open(self, path, mode="rb", **settings):
        if "a" in mode:
            raise NotImplementedError("an object store appends nothing")
        return super()._open(path, mode, **settings)


def install() -> None:
    """Lets addresses gs:// lead to `Bucket`."""
    fsspec.register_implementation("gs", Bucket, clobber=True)


if __name__ == "__main__":
    from padir.cli.entry import command

    install()
    sys.argv[0] = "padir"
    command()
