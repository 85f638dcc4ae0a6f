"""Compares padir's terms with constrained beam search by transformers, with the weights of `de_en_ar`.

    pip install torch transformers==4.49.0
    python scripts/terms_by_transformers.py --pairs test.de.gz test.en.gz --length_penalty 0 --json FILE

Terms are those of `words_that_stand.py --pairs`. Both programs search with a beam of 5, one sentence at a time, and
get the term as its pieces after a space. Prints terms used, BLEU, chrF and seconds, the programs of JAX compiled.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from words_that_stand import lines, missing, with_terms

from padir import Translator
from padir.interop.huggingface import write_weights
from padir.measuring.benchmark.speed_report import environment
from padir.metrics.scores import bleu, chrf
from padir.storage.files import write_json

Terms = dict[str, str]
BEAM, LONGEST = 5, 64


def by_transformers(translator: Translator, folder: Path, length_penalty: float) -> Callable[[str, Terms], str]:
    """A function that translates a text with transformers' T5, and forces its terms' pieces."""
    write_weights(translator, folder)
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = translator.tokenizer

    def translate(text: str, terms: Terms) -> str:
        pieces = torch.tensor([[*tokenizer.encode(text), model.config.eos_token_id]])
        forced = [tokenizer.encode(term) for term in terms.values()] or None
        with torch.no_grad():
            ids = model.generate(
                pieces,
                num_beams=BEAM,
                max_new_tokens=LONGEST,
                length_penalty=length_penalty,
                force_words_ids=forced,
            )
        return tokenizer.decode([i for i in ids[0].tolist() if i > model.config.eos_token_id])

    return translate


def by_padir(translator: Translator) -> Callable[[str, Terms], str]:
    """A function that translates a text with padir, and with its terms."""

    def translate(text: str, terms: Terms) -> str:
        return translator.translate([text], terms=[terms] if terms else None, beam=BEAM, truncate=True)[0].text

    return translate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", nargs=2, metavar="FILE", required=True, help="a test set, plain or gzip")
    parser.add_argument("--sentences", type=int, default=100, help="sentences with a term (100)")
    parser.add_argument("--length_penalty", type=float, default=1.0, help="transformers' (1.0)")
    parser.add_argument("--json", metavar="FILE", help="write the rows and the machine")
    args = parser.parse_args()
    translator = Translator.load("de_en_ar")
    pairs = list(zip(*map(lines, args.pairs), strict=True))[: 2 * args.sentences]
    sources, references, terms = map(list, zip(*with_terms(translator, pairs)[: args.sentences], strict=True))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for program, translate in (
            ("transformers", by_transformers(translator, Path(folder), args.length_penalty)),
            ("padir", by_padir(translator)),
        ):
            for kind, given in (("plain", [{}] * len(terms)), ("terms", terms)):
                [*map(translate, sources, given)]  # compiles
                began = time.perf_counter()
                texts = [*map(translate, sources, given)]
                seconds = time.perf_counter() - began
                used = sum(not missing(*each) for each in zip(terms, sources, texts, strict=True))
                scores = bleu(texts, references, "en"), chrf(texts, references)
                row = {"program": program, "kind": kind, "sentences": len(texts), "used": used, "seconds": seconds}
                rows.append(row | {each.name: each.value for each in scores})
                print(rows[-1], flush=True)
    if args.json:
        versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        write_json(args.json, {"environment": environment() | versions, "rows": rows})


if __name__ == "__main__":
    main()
