"""Makes the page that translates in the browser: python scripts/try_page.py site/try

The folder is complete: page, programs, weights, and ONNX Runtime Web, which npm fetches from its registry. Without npm
the page says that it lacks the runtime. To read it: python -m http.server -d site
"""

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from padir import Translator
from padir.interop.onnx import export_onnx
from padir.serve.app import page, settings_of
from padir.serve.engine import Engine

RUNTIME = "onnxruntime-web@1.30.0"


def build(folder: Path, model: str = "de_en") -> None:
    """Writes the page and all that it loads; `model` also names a folder."""
    translator = Translator.load(model)
    decoding = translator.decoding
    if translator.card.config.readout == "ctc":
        decoding = decoding.changed(prefix_beam=1)  # one sentence of a canvas
    export_onnx(translator, folder, decoding)
    settings = settings_of(Engine(translator, decoding), Path(model).name)
    (folder / "index.html").write_text(page(settings | {"local": True}))
    if not fetch_runtime(folder):
        print("try: npm cannot fetch ONNX Runtime Web here, so that the page does not translate", file=sys.stderr)


def fetch_runtime(folder: Path) -> bool:
    """Puts the files of ONNX Runtime Web into a folder; False if npm is missing or cannot fetch them."""
    if shutil.which("npm") is None:
        return False
    with tempfile.TemporaryDirectory() as unpacked:
        patience = ["--fetch-timeout=30000", "--fetch-retries=1"]  # milliseconds
        command = ["npm", "pack", RUNTIME, "--loglevel=error", *patience, "--pack-destination", unpacked]
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            return False
        (archive,) = Path(unpacked).glob("*.tgz")
        with tarfile.open(archive) as tar:
            for name in ("ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"):
                (folder / name).write_bytes(tar.extractfile(f"package/dist/{name}").read())
    return True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    build(parser.parse_args().folder)
