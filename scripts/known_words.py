"""Counts the translations of a file that have a word outside a list of known words, for each model.

    python scripts/known_words.py --known FILE.. [--text scripts/everyday.de] [--models de_en de_en_ar de_en_ctc]
                                  [--json results/everyday.json]

The 200 sentences of scripts/everyday.de were written for this purpose. None stands in the shipped models' corpora.
Prints a line for each model and mode with an exact (Clopper-Pearson) 95 % interval, and writes them as JSON.
"""

import argparse

from scipy.stats import binomtest

from padir import Translator
from padir.cli.console import read_lines
from padir.metrics.scores import non_words
from padir.storage.files import write_json

WAYS = {"one pass": {"mode": "refine", "num_steps": 1}, "4 passes": {"mode": "refine", "num_steps": 4}}
WAYS |= {"one pass, no table": {"mode": "refine", "num_steps": 1, "prefix_beam": 1, "fusion": "none"}}
WAYS |= {"greedy": {"mode": "causal", "beam": 1}, "beam 5": {"mode": "causal", "beam": 5}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", nargs="+", required=True, metavar="FILE", help="texts of the target language")
    parser.add_argument("--text", default="scripts/everyday.de", metavar="FILE", help="the sentences to translate")
    parser.add_argument("--models", nargs="+", default=["de_en", "de_en_ar", "de_en_ctc"], metavar="MODEL")
    parser.add_argument("--json", metavar="FILE", help="the file to write")
    args = parser.parse_args()
    sources = read_lines(args.text)
    metric, _ = non_words(line for path in args.known for line in read_lines(path))
    rows = []
    for name in args.models:
        translator = Translator.load(name)
        for way, options in WAYS.items():
            config = translator.card.config
            refines = options["mode"] == "refine"
            if (refines and config.causal) or (way == "4 passes" and config.readout == "ctc"):
                continue
            if "fusion" in options and translator.decoding.fusion is None:  # the model has no table
                continue
            outputs = [result.text for result in translator.translate(sources, **options)]
            score = metric(outputs, outputs)
            exact = binomtest(round(score.value * len(outputs) / 100), len(outputs)).proportion_ci()
            row = {"model": name, "mode": way, "sentences": len(outputs), "signature": score.signature}
            rows.append(row | {"non_words": score.value, "low": 100 * exact.low, "high": 100 * exact.high})
            print(rows[-1], flush=True)
    if args.json:
        write_json(args.json, rows)


if __name__ == "__main__":
    main()
