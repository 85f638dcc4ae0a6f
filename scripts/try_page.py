"""Makes the page that translates in the browser: python scripts/try_page.py site/try

The folder is complete: page, programs, weights, and ONNX Runtime Web, which npm fetches from its registry. Without npm
the page says that it lacks the runtime. To read it: python -m http.server -d site
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from padir import Translator
from padir.cli import main
from padir.serve.app import EXAMPLES, page

RUNTIME = "onnxruntime-web@1.30.0"


def build(folder: Path) -> None:
    """Writes the page and all that it loads."""
    if main(["export", "--format", "onnx", "--model", "de_en", "--output", str(folder)]):
        raise SystemExit("the model was not exported")
    translator = Translator.load("de_en")
    decoding, card = translator.decoding, translator.card
    settings = {
        "local": True,
        "model": "de_en",
        "source": card.source_language,
        "target": card.target_language,
        "causal": False,
        "num_steps": decoding.num_steps,
        "top_k": decoding.top_k,
        "max_steps": 16,
        "max_lengths": 8,
        "examples": EXAMPLES[card.source_language],
        "rule": decoding.rerank,
    }
    (folder / "index.html").write_text(page(settings))
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
    build(Path(sys.argv[1]))
