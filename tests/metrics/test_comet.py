"""The example of a metric, with a stand-in for the package comet."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

from padir import Decoding
from padir.evaluation import TestSet, evaluate

EXAMPLE = Path(__file__).parents[2] / "examples" / "metrics" / "comet_score.py"


class Model:
    def predict(self, samples, batch_size, gpus):
        assert batch_size == 16 and gpus == 0
        self.samples = samples
        return SimpleNamespace(scores=[0.5, 0.75], system_score=0.625)


def test_comet_scores_source_output_and_reference_of_each_sentence(translator, monkeypatch):
    model = Model()
    comet = SimpleNamespace(download_model=lambda name: f"{name}.ckpt", load_from_checkpoint={"mine.ckpt": model}.get)
    monkeypatch.setitem(sys.modules, "comet", comet)
    test_set = TestSet("mine", "de", "en", ["Hallo!", "Gut."], ["Hello!", "Good."])
    metric = runpy.run_path(str(EXAMPLE))["Comet"](test_set.sources, "mine")
    found = evaluate(translator, test_set, Decoding(), metrics=[metric])
    assert str(found.scores["comet"]) == "comet = 62.50  nrefs:1|model:mine"
    expected = zip(test_set.sources, found.hypotheses, test_set.references, strict=True)
    assert model.samples == [{"src": s, "mt": m, "ref": r} for s, m, r in expected]
