"""A metric of one's own: COMET (Rei et al., 2022), which also reads the sources. It needs `pip install unbabel-comet`.

test_set = padir.evaluation.TestSet("mine", "de", "en", sources, references)
padir.evaluation.evaluate(translator, test_set, translator.decoding, metrics=[Comet(test_set.sources)])
"""

import dataclasses
from collections.abc import Sequence

from padir.metrics.scores import Score


@dataclasses.dataclass(frozen=True)
class Comet:
    """Mean COMET score times 100; the first call downloads the model.

    Attributes:
      sources: the sentences that were translated.
      model: a model's name on the Hugging Face hub.
    """

    sources: Sequence[str]
    model: str = "Unbabel/wmt22-comet-da"

    def __call__(self, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
        from comet import download_model, load_from_checkpoint

        lines = zip(self.sources, hypotheses, references, strict=True)
        samples = [{"src": source, "mt": output, "ref": reference} for source, output, reference in lines]
        found = load_from_checkpoint(download_model(self.model)).predict(samples, batch_size=16, gpus=0)
        return Score("comet", 100 * found.system_score, f"nrefs:1|model:{self.model}")
