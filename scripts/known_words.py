"""Counts the translations of a file that have a word outside a list of known words, for each model.

    python scripts/known_words.py --known FILE.. [--text scripts/everyday.de] [--models de_en de_en_ar de_en_ctc]

The 200 sentences of scripts/everyday.de were written for this purpose. None stands in the shipped models' corpora.
Prints a table in Markdown with exact (Clopper-Pearson) 95 % intervals, and the sum of the list.
"""

import argparse

from scipy.stats import binomtest

from padir import Translator
from padir.cli.console import read_lines
from padir.metrics.scores import non_words

WAYS = {"one pass": {"mode": "refine", "num_steps": 1}, "4 passes": {"mode": "refine", "num_steps": 4}}
WAYS |= {"greedy": {"mode": "causal", "beam": 1}, "beam 5": {"mode": "causal", "beam": 5}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--known", nargs="+", required=True, metavar="FILE", help="texts of the target language")
    parser.add_argument("--text", default="scripts/everyday.de", metavar="FILE", help="the sentences to translate")
    parser.add_argument("--models", nargs="+", default=["de_en", "de_en_ar", "de_en_ctc"], metavar="MODEL")
    args = parser.parse_args()
    sources = read_lines(args.text)
    metric, _ = non_words(line for path in args.known for line in read_lines(path))
    print("| model | mode | outputs with a non-word | 95 % interval |\n| --- | --- | ---: | ---: |")
    for name in args.models:
        translator = Translator.load(name)
        for way, options in WAYS.items():
            config = translator.card.config
            if (options["mode"] == "refine" and config.causal) or (way == "4 passes" and config.readout == "ctc"):
                continue
            outputs = [result.text for result in translator.translate(sources, **options)]
            score = metric(outputs, outputs)
            exact = binomtest(round(score.value * len(outputs) / 100), len(outputs)).proportion_ci()
            bounds = f"{100 * exact.low:.1f} to {100 * exact.high:.1f} %"
            print(f"| `{name}` | {way} | {score.value:.1f} % | {bounds} |", flush=True)
    print(f"\n{len(sources)} sentences, known words {score.signature}")


if __name__ == "__main__":
    main()
