"""Times translations in the browser, in headless Chromium: PYTHONPATH=tests python scripts/try_speed.py MODEL

Prints the seconds of the first translation after the page has loaded, and of later ones, of 12 German words each.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import try_page
from support.chromium import opened, served

SENTENCES = (
    "Am Morgen trinkt meine Schwester immer einen Kaffee und liest die Zeitung.",
    "Wir haben gestern im Park einen alten Mann mit zwei Hunden getroffen.",
    "Kannst du mir bitte sagen, wann der nächste Zug nach Berlin fährt?",
    "Das Kind hat seine Schuhe im Garten vergessen und sucht sie jetzt.",
    "Wenn es morgen regnet, bleiben wir zu Hause und spielen wieder Karten.",
    "Meine Freunde wollen im Sommer mit dem Fahrrad an die See fahren.",
    "Der Lehrer erklärt den Schülern die Aufgabe, aber niemand hört ihm zu.",
    "Ich habe das Buch gelesen, das du mir letzte Woche geliehen hast.",
)
TIMED = """
document.getElementById("text").value = {text!r};
const began = performance.now();
document.getElementById("go").click();
while (document.getElementById("go").ariaBusy === "true") await new Promise((done) => setTimeout(done, 1));
return [(performance.now() - began) / 1000, document.getElementById("problem").textContent];
"""


def main(model: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        try_page.build(Path(folder), model)
        with served(folder) as address, opened(f"{address}/", width=800) as page:
            found = [page(TIMED.format(text=text)) for text in (*SENTENCES, *SENTENCES)]
    if problem := "".join(text for _, text in found):
        sys.exit(problem)
    first, *later = (seconds for seconds, _ in found)
    print(f"{model}: first {first:.2f} s, later {statistics.median(later):.2f} s (at most {max(later):.2f} s)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model")
    main(parser.parse_args().model)
