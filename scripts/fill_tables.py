"""Writes the tables of README and docs/ from results/: each stands between a mark with its name and an end mark.

A mark may have arguments after the name.

python scripts/fill_tables.py
"""

import argparse
import dataclasses
import inspect
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

from padir.data.plan import Batching
from padir.models.config import ModelConfig
from padir.training.averaging import Averaging
from padir.training.config import Intervals, TrainConfig
from padir.training.objective import Objective
from padir.training.optimizer import Adafactor, Adam, Cosine

ROOT = Path(__file__).resolve().parent.parent

SHORT = {  # options of `padir train` that are short names of bindings
    "train.num_steps": "--steps",
    "train.seed": "--seed",
    "train.start_from": "--start_from",
    "Batching.rows": "--rows",
    "Cosine.peak": "--learning_rate",
    "Cosine.warmup_steps": "--warmup",
    "ModelConfig.dropout_rate": "--dropout",
    "Intervals.evaluate": "--evaluate_every",
}


def settings() -> str:
    """Every setting of a training run: its gin name, its option, its default, and what its docstring says."""
    rows = []
    for each in (TrainConfig, ModelConfig, Objective, Adafactor, Adam, Cosine, Batching, Intervals, Averaging):
        owner = "train" if each is TrainConfig else each.__name__
        about = attributes(each)
        for field in dataclasses.fields(each):
            default = field.default
            if dataclasses.is_dataclass(default):
                default = f"@{type(default).__name__}()"
            name = f"{owner}.{field.name}"
            short = f"`{SHORT[name]}`" if name in SHORT else ""
            rows.append([f"`{name}`", short, f"`{default}`", about[field.name]])
    return RESULTS["table"](["gin name", "option", "default", "what it does"], rows, text=True).replace("---:", "---")


def attributes(each: type) -> dict[str, str]:
    """Descriptions of the attributes in a class's docstring, by name."""
    section = re.search(r"^Attributes:\n((?:  .*\n|\n)+)", inspect.getdoc(each) + "\n", re.MULTILINE)[1]
    found = {}
    for entry in re.split(r"\n(?=  \w)", section):
        names, about = entry.split(":", 1)
        found |= dict.fromkeys(names.strip().split(", "), " ".join(about.split()).replace("|", "\\|"))
    return found


SCRIPTS = ("result_tables", "speed_table", "study_tables", "components", "samplers", "filled_text")
RESULTS, SPEED, STUDIES, COMPONENTS, SAMPLERS, FILLED = (
    runpy.run_path(str(ROOT / "scripts" / f"{name}.py")) for name in SCRIPTS
)
TABLES = {name: RESULTS[name] for name in ("readme", "board", "evaluation")}
TABLES |= {
    "speed": SPEED["table"],
    "speed_shapes": SPEED["shapes"],
    "modes": SPEED["modes"],
    "modes_compared": SPEED["modes_compared"],
    "captions": SPEED["captions"],
}
TABLES |= {
    "memory": SPEED["memory"],
    "training_speed": SPEED["training"],
    "rounding": SPEED["rounding"],
    "settings": settings,
}
TABLES |= {"devices": SPEED["devices"], "gpu": SPEED["gpu"], "gpu_training": SPEED["gpu_training"]}
TABLES["chosen_strategies"] = COMPONENTS["chosen_strategies"]
TABLES |= {name: SAMPLERS[name] for name in ("audit", "prediction")}
TABLES |= STUDIES["TABLES"] | FILLED["TEXTS"]
MARKED = re.compile(r"(<!-- table: (.+) -->\n)(?s:.*?)(<!-- end -->)")


def pages() -> Iterator[Path]:
    """The pages that may have tables."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").glob("*.md"))


def filled(text: str) -> str:
    """A page with its tables made anew."""

    def table(mark: re.Match[str]) -> str:
        begin, words, end = mark.groups()
        name, *arguments = shlex.split(words)
        return f"{begin}\n{TABLES[name](*arguments).strip()}\n\n{end}"

    return MARKED.sub(table, text)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter).parse_args()
    for page in pages():
        page.write_text(filled(page.read_text()))
