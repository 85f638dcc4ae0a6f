"""gin: precedence of bindings, instances that are made, and messages about wrong names and types."""

import sys
from pathlib import Path

import gin.config as gin_config
import pytest
from support.commands import refused, run
from support.refusals import refuses

from padir import Decoding, config
from padir.data.plan import Batching
from padir.models.config import ModelConfig
from padir.refinement import STRATEGIES, FromStrategy, Mask, MaskPredict, Padir, Threshold, Uniform
from padir.training import Adafactor, Adam, Causal, Cosine, Intervals, Objective, TrainConfig

REPOSITORY = Path(__file__).parents[1]
SHIPPED = sorted(path.relative_to(REPOSITORY) for path in (REPOSITORY / "configs").rglob("*.gin"))
SHIPPED = [path for path in SHIPPED if "t5x" not in path.parts]  # T5X reads those; test_t5x_commands.py does


pytestmark = pytest.mark.usefixtures("blank_config")


def write(folder, text, name="some.gin"):
    (folder / name).write_text(text)
    return str(folder / name)


def bind(bindings):
    """Parses the bindings of the lines of a text."""
    config.parse([], bindings.split())


def built(item, **settings):
    return config.configured(item)(**settings)


class TestOrder:
    def test_a_later_file_wins_and_an_override_wins_over_both(self, tmp_path):
        first = write(tmp_path, "ModelConfig.width = 8\nModelConfig.heads = 2\nModelConfig.mlp = 9\n", "first.gin")
        second = write(tmp_path, "ModelConfig.width = 16\nModelConfig.heads = 4\n", "second.gin")
        config.parse([first, second], ["ModelConfig.width=32"])
        made = built(ModelConfig)
        assert (made.width, made.heads, made.mlp) == (32, 4, 9)
        assert made.head_dim == ModelConfig().head_dim

    def test_a_file_includes_another_beside_it(self, tmp_path):
        write(tmp_path, "ModelConfig.width = 8\n", "base.gin")
        outer = write(tmp_path, 'include "base.gin"\nModelConfig.mlp = 9\n')
        config.parse([outer])
        assert built(ModelConfig) == ModelConfig(width=8, mlp=9)

    def test_parsing_again_forgets(self):
        bind("ModelConfig.width=8")
        bind("ModelConfig.mlp=9")
        assert built(ModelConfig) == ModelConfig(mlp=9)

    def test_clear_forgets(self):
        bind("ModelConfig.width=8")
        config.clear()
        assert built(ModelConfig) == ModelConfig()

    def test_operative_says_what_was_used(self):
        bind("ModelConfig.width=8")
        built(ModelConfig)
        assert "ModelConfig.width = 8" in config.operative()

    def test_a_binding_that_nothing_uses_is_refused(self):
        bind("ModelConfig.width=8 Mask.rate=0.5")
        built(ModelConfig)
        refuses(config.operative, "Mask.rate has no effect, because nothing here uses Mask")
        built(Mask)
        config.check_overrides()

    @pytest.mark.parametrize("name", ["SEED", "other/ModelConfig.width", "other/train.seed"])
    def test_a_binding_that_nothing_refers_to(self, name):
        bind(f"MODEL_DIR=run {name}=8")
        built(TrainConfig)
        assert config.macro("MODEL_DIR") == "run"
        refuses(config.check_overrides, f"{name} has no effect")

    def test_macros_and_scopes_that_are_used(self):
        bind("SEED=8 train.seed=%SEED train.optimizer=@fast/Adam() fast/Cosine.peak=0.5")
        made = built(TrainConfig)
        assert (made.seed, made.optimizer) == (8, Adam(Cosine(peak=0.5)))
        config.check_overrides()

    def test_an_unbound_argument_is_made_of_the_configuration(self):
        bindings = "Uniform.rate=0.5 Objective.length_weight=2.0 Decoding.num_lengths=3"
        bind(bindings)
        assert config.argument(TrainConfig, "objective") == Objective(Uniform(0.5), length_weight=2.0)
        assert built(Decoding).num_lengths == 3 and built(Decoding, num_lengths=7).num_lengths == 7
        config.check_overrides()
        bind(f"{bindings} train.objective=@Causal()")
        assert config.argument(TrainConfig, "objective") == Causal()


class TestInstances:
    def test_equal_those_that_are_built_directly(self):
        bind("Objective.corruption=@Mask() Mask.rate=0.5 Objective.transition=@FromStrategy()")
        made = built(Objective)
        assert made == Objective(corruption=Mask(0.5), transition=FromStrategy(Padir()))
        # jit keys on both, and the model card on the class.
        assert hash(made) == hash(Objective(corruption=Mask(0.5))) and type(made.corruption) is Mask

    @pytest.mark.usefixtures("unchecked")
    def test_what_saves_memory(self):
        bind("ModelConfig.remat='attention'")
        assert config.argument(TrainConfig, "model") == ModelConfig(remat="attention")
        config.check_overrides()
        for value in ("True", "'layers'", "1.5"):
            bind(f"ModelConfig.remat={value}")
            refuses(config.argument, "remat must be", TrainConfig, "model")

    @pytest.mark.parametrize(("binding", "expected"), [("@Padir()", Padir("start")), ("@MaskPredict()", MaskPredict())])
    def test_strategies(self, binding, expected):
        bind(f"Decoding.strategy={binding} Padir.remask=start")
        made = built(Decoding)
        assert made == Decoding(strategy=expected) and type(made.strategy) is type(expected)

    def test_an_instance_gets_its_own_bindings(self):
        bind("Decoding.strategy=@Threshold() Threshold.tau=0.75")
        assert built(Decoding) == Decoding(strategy=Threshold(0.75))

    def test_nested(self):
        bind("Decoding.num_lengths=5 Decoding.canvas=@Uniform() Adam.learning_rate=@Cosine() Cosine.peak=2e-3")
        assert built(Decoding) == Decoding(num_lengths=5, canvas=Uniform())
        assert built(Adam) == Adam(learning_rate=Cosine(peak=2e-3))

    @pytest.mark.parametrize(("binding", "peak"), [("", 1e-3), ("Cosine.peak=0.5", 0.5)])
    def test_defaults_of_a_bound_class_are_made_of_the_configuration(self, binding, peak):
        bind(f"train.optimizer=@Adam() {binding}")
        assert built(TrainConfig).optimizer == Adam(learning_rate=Cosine(peak=peak))
        assert config.argument(TrainConfig, "optimizer") == Adam(learning_rate=Cosine(peak=peak))

    def test_a_default_keeps_its_own_values(self):
        bind("Cosine.warmup_steps=7")
        assert built(TrainConfig).optimizer == Adafactor(Cosine(peak=1e-2, warmup_steps=7))

    def test_the_printed_configuration_can_be_changed(self, tmp_path):
        config.parse()
        built(TrainConfig)
        config.parse([write(tmp_path, config.operative())], ["Cosine.peak=0.5"])
        assert built(TrainConfig).optimizer == Adafactor(Cosine(peak=0.5))

    def test_a_class_within_itself_is_refused(self):
        refuses(bind, "refer to each other in a circle", "train.objective=@Sum() Sum.refining=@Sum()")
        bind("train.objective=@s/Sum() s/Sum.refining=@Sum()")  # a circle by its scope alone
        refuses(built, "in a circle", TrainConfig)
        refuses(config.argument, "in a circle", TrainConfig, "objective")

    def test_a_wrong_value_is_refused_by_its_class(self):
        bind("ModelConfig.width=0")
        refuses(built, "width must be at least 1, got 0", ModelConfig)


class TestClassesOfOnesOwn:
    """As gin documents: a file with dynamic registration imports every module that it names."""

    @pytest.fixture
    def mine(self, tmp_path, monkeypatch):
        """A gin file that sets a strategy of the user's own."""
        source = "import dataclasses\nfrom padir.refinement import Padir\n\n\n@dataclasses.dataclass(frozen=True)\n"
        (tmp_path / "my_strategies.py").write_text(source + "class Mine(Padir):\n    patience: int = 1\n")
        monkeypatch.syspath_prepend(tmp_path)
        head = "from __gin__ import dynamic_registration\nimport my_strategies\nfrom padir.decoding import options\n"
        lines = "my_strategies.Mine.patience = 3\noptions.Decoding.strategy = @my_strategies.Mine()\n"
        return write(tmp_path, head + lines)

    @pytest.mark.parametrize("name", ["num_step", "writer"])
    def test_stand_beside_options_that_there_are(self, mine, tmp_path, name):
        """Gin calls the class options.Decoding here, as the file's import does."""
        wrong = write(tmp_path, f"{Path(mine).read_text()}options.Decoding.{name} = 3\n")
        message = refuses(
            config.parse, f"doesn't have a parameter named '{name}'", [wrong], [], allow_imports=["my_strategies"]
        )
        assert ("did you mean 'num_steps'?" in str(message)) == (name == "num_step")

    def test_are_made_and_configured(self, mine):
        config.parse([mine], ["Decoding.num_steps=7"], allow_imports=["my_strategies"])
        made = built(Decoding)
        assert type(made.strategy).__name__ == "Mine" and made.strategy.patience == 3 and made.num_steps == 7
        assert "my_strategies.Mine.patience = 3" in config.operative()  # and the binding of num_steps counts as used

    def test_bindings_of_the_command_line_count_as_used(self, mine):
        bindings = ["train.num_steps=7", "Cosine.peak=0.5"]
        config.parse([mine], bindings, allow_imports=["my_strategies"])
        refuses(config.check_overrides, "train.num_steps has no effect")
        made = built(TrainConfig)
        assert (made.num_steps, made.optimizer.learning_rate.peak) == (7, 0.5)
        config.check_overrides()

    def test_the_command_line_allows_their_module(self, mine, monkeypatch, capsys):
        monkeypatch.setattr("padir.cli.translating.run_translate", lambda args: print(config.configured(Decoding)()))
        assert "add --allow_imports and the modules that it imports" in refused(capsys, f"translate --gin_file {mine}")
        status, out, _ = run(capsys, f"translate --gin_file {mine} --allow_imports my_strategies")
        assert status == 0 and "Mine(remask='previous', " in out

    def test_a_field_without_a_value_is_told(self, mine, tmp_path, capsys):
        source = "import dataclasses\nfrom padir.refinement import Padir\n\n\n@dataclasses.dataclass(frozen=True)\n"
        (tmp_path / "open_fields.py").write_text(
            source + "class Open(Padir):\n    limit: int = dataclasses.field(kw_only=True)\n"
        )
        text = Path(mine).read_text().replace("my_strategies", "open_fields").replace("Mine", "Open")
        file = write(tmp_path, "".join(line for line in text.splitlines(True) if "patience" not in line))
        said = refused(capsys, f"translate --gin_file {file} --allow_imports open_fields")
        assert "Open needs a limit: bind Open.limit in gin" in said

    def test_an_option_without_its_owner_is_told(self):
        config.parse([], ["num_lengths=5"])
        refuses(config.check_overrides, "num_lengths has no effect ... write Decoding.num_lengths, or leave it out")

    def test_a_name_that_is_not_imported_is_told(self, tmp_path):
        file = write(tmp_path, "from __gin__ import dynamic_registration\nDecoding.num_steps = 7\n")
        words = "line 2: 'Decoding' was not provided by an import statement: in a file with imports, add"
        remedy = "from padir.decoding import options"
        refuses(config.parse, f"{words} ... {remedy} ... options.Decoding", [file], allow_imports=["my_strategies"])
        file = write(tmp_path, f"from __gin__ import dynamic_registration\n{remedy}\noptions.Decoding.num_steps = 7\n")
        config.parse([file], [], allow_imports=["my_strategies"])
        file = write(tmp_path, "from __gin__ import dynamic_registration\nMine.num_steps = 7\n")
        refuses(config.parse, "'Mine' ... import its module below", [file], allow_imports=["my_strategies"])


class TestImports:
    """A gin file runs no code: it may not import, however the statement is written and wherever it stands."""

    @pytest.fixture(autouse=True)
    def harmful(self, tmp_path, monkeypatch):
        """A package that leaves a mark when anything imports it."""
        (tmp_path / "harmful" / "inner").mkdir(parents=True)
        (tmp_path / "harmful" / "__init__.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
        (tmp_path / "harmful" / "inner" / "x.gin").write_text("SIZE = 1\n")
        monkeypatch.syspath_prepend(tmp_path)
        yield
        assert not (tmp_path / "mark").exists() and "harmful" not in sys.modules

    SPELLINGS = [
        "import harmful",
        "import   harmful  as numpy",
        "import harmful.inner",
        "from harmful import inner",
        "from harmful import inner as padir",
        "\n  \n# from\nimport harmful # padir",
        "import harmful_or_not\nimport harmful",
        "from __gin__ import dynamic_registration\nimport harmful",
        "from __gin__ import dynamic_registration\nimport padir.data.prepared",
        "import padir.data.prepared",
        "ModelConfig:\n  width = 8\nimport harmful",
    ]

    @pytest.mark.parametrize("allowed", [[], ["harm", "harmful.in", "inner", "harmful_"]])
    @pytest.mark.parametrize("text", SPELLINGS)
    def test_are_refused_in_files_and_bindings(self, tmp_path, text, allowed):
        if allowed and "harmful" not in text:
            return  # with a module of the user's own a file is a program, which may use padir's modules
        file = write(tmp_path, text)
        words = "some.gin, line ... ` runs code ... add --allow_imports"
        refuses(config.parse, words, [file], allow_imports=allowed)
        outer = write(tmp_path, f'include "{file}"\n', "outer.gin")
        for files, bindings in (([outer], []), ([], [f"SIZE=1\n{text}"])):
            refuses(config.parse, "runs code, which a gin file may not", files, bindings, allow_imports=allowed)

    def test_a_path_that_looks_like_a_package_imports_nothing(self, tmp_path):
        (tmp_path / "apart").mkdir()  # an included file is found beside the one that includes it
        file = write(tmp_path / "apart", 'include "harmful/inner/x.gin"\n')
        refuses(config.parse, "a gin file is missing", [file])

    def test_gin_is_left_as_it_was(self, tmp_path):
        before = gin_config.ParseContext.process_import, list(gin_config._FILE_READERS)
        refuses(config.parse, "harmful", [write(tmp_path, "import harmful")])
        assert (gin_config.ParseContext.process_import, gin_config._FILE_READERS) == before


def test_shipped_files_are_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config.parse(["configs/run/toy_cpu.gin"])
    assert config.macro("DATASET")


class TestValues:
    @pytest.mark.parametrize(
        ("given", "value"),
        [
            ("data/toy-2.0", "data/toy-2.0"),
            ('"data/toy"', "data/toy"),
            ("/a/b", "/a/b"),
            ("True", True),
            ("None", None),
            ("1e-3", 1e-3),
            ("-2.5e+10", -2.5e10),
            ("1_000", 1000),
            ("('all', 'none')", ("all", "none")),
        ],
    )
    def test_of_overrides(self, given, value):
        config.parse([], [f"DATASET={given}"])
        assert config.macro("DATASET") == value

    def test_macros_that_nothing_sets(self):
        assert config.macro("MODEL_DIR") is None

    def test_a_macro_reaches_where_it_is_used(self, tmp_path):
        config.parse([write(tmp_path, "SIZE = 8\nModelConfig.width = %SIZE\n")], ["SIZE=24"])
        assert built(ModelConfig).width == 24


@pytest.mark.usefixtures("unchecked")
class TestWrongTypes:
    @pytest.mark.parametrize(
        ("item", "binding", "message"),
        [
            (TrainConfig, "train.num_steps=abc", "num_steps must be a whole number, got 'abc'"),
            (TrainConfig, "train.num_steps=1e3", "num_steps must be a whole number, got 1000.0"),
            (ModelConfig, "ModelConfig.tied=1", "tied must be True or False, got 1"),
            (ModelConfig, "ModelConfig.width=True", "width must be a whole number, got True"),
            (ModelConfig, "ModelConfig.mlp_activations='relu'", "mlp_activations must be a tuple"),
            (Decoding, "Decoding.num_lengths='x'", "num_lengths must be a whole number"),
            (Uniform, "Uniform.rate='x'", "rate must be a number, got 'x'"),
            (Decoding, "Decoding.strategy=3", "Strategy ... got 3: give an instance ... (in gin @Name"),
            (TrainConfig, "Objective.corruption=mask", "Corruption, got 'mask': give an instance ... (in gin @Name"),
        ],
    )
    def test_are_told(self, item, binding, message):
        bind(binding)
        refuses(built, message, item)

    @pytest.mark.parametrize(
        ("item", "binding"),
        [
            (Uniform, "Uniform.rate=1"),
            (Batching, "Batching.max_segments=None"),
            (Decoding, "Decoding.strategy='padir'"),
            (ModelConfig, "ModelConfig.width=%SIZE"),
        ],
    )
    def test_what_fits_passes(self, item, binding):
        bind(f"SIZE=8 {binding}")
        built(item)


class TestWrongNames:
    @pytest.mark.parametrize(
        ("binding", "message"),
        [
            ("ModelConfg.width=3", "ModelConfg ... did you mean 'ModelConfig'?"),
            ("ModelConfig.widht=3", "widht ... did you mean 'width'?"),
            ("train.num_step=3", "num_step ... did you mean 'num_steps'?"),
            ("Objective.corruption=@Uniforn()", "Uniforn ... did you mean 'Uniform'?"),
            ("xyzzy.width=3", "xyzzy ... known are ... ModelConfig"),
            ("train.evaluate_fn=None", "evaluate_fn"),
            ("Decoding.num_beams=3", "here it is called 'beam'"),
            ("Decoding.max_new_tokens=3", "ModelConfig.max_length limits"),
            ("ModelConfig.width", "lacks a value: write --gin.name.parameter=value"),
            ("ModelConfig.width=(3", ""),
            ("ModelConfig.width=%SIZE", "%SIZE is used, but nothing sets SIZE: add --gin.SIZE=VALUE"),
            ("ModelConfig.width=%gin.REQUIRED", "ModelConfig.width set to `%gin.REQUIRED` but not"),
        ],
    )
    def test_are_answered_in_one_line(self, binding, message):
        refuses(bind, message, binding)

    def test_macros_in_a_circle_are_refused(self):
        for bindings in ("ModelConfig.width=%A A=%B B=%A", "A=(1,%A)"):
            refuses(bind, "values of ... refer to each other in a circle", bindings)

    @pytest.mark.parametrize(
        ("line", "name", "module"),
        [
            ("model.ModelConfig.mlp = 9", "ModelConfig", "model"),
            ("trainer.train.num_steps = 9", "train", "trainer"),
            ("Decoding.strategy = @strategies.Threshold()", "Threshold", "strategies"),
        ],
    )
    def test_a_module_in_front_is_refused_with_the_bare_name(self, tmp_path, line, name, module):
        for files, bindings in (([], [line.replace(" = ", "=")]), ([write(tmp_path, line + "\n")], [])):
            refuses(config.parse, f"write {name}, without {module} in front", files, bindings)

    def test_an_included_file_is_not_quoted(self, tmp_path):
        (tmp_path / "secret").write_text("pass:word\n")
        file = write(tmp_path, f"include '{tmp_path}/secret'\n", "a.gin")
        error = refuses(config.parse, "a.gin cannot be read as gin configuration, line 1", [file])
        assert "pass:word" not in str(error)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "M0 = 1\n" + "".join(f"M{i} = ({f'%M{i - 1}, ' * 9})\n" for i in range(1, 12)),
                "are more than 1,000",
            ),
            (f"X = ({'1, ' * 10**6})\n", "must be at most 32,768 bytes"),
            (f"M11 = 1\nModelConfig.width = ({'1,' * 15_000})\n", "padir.ModelConfig refer ... are more than 1,000"),
            ("include 'a.gin'\n", "a.gin includes itself, or more than 100 files"),
            ("include 'b.gin'\n" * 9, "a.gin includes itself, or more than 100 files"),
            (
                f"X = {'[' * 5_000 + ']' * 5_000}\n",
                "a.gin ",
            ),  # is nested too deeply, or, with Python 3.12, cannot be read
            (f"X = {'[' * 120 + ']' * 120}\n", "values of X refer ... deeper than 100 levels"),
            (f"{'a/' * 15_000}Padir.top_k = 1\n", "deeper than 100 levels"),
            (f"Decoding.strategy = @{'a/' * 15_000}Padir()\n", "deeper than 100 levels"),
            (f"ModelConfig.width = {'9' * 30_000}\n", "a.gin cannot be read"),
            ("X = " + "'a' " * 9_000 + "\n", "must be at most 32,768 bytes"),
            ("X = {[]: 1}\n", "a.gin: unhashable"),
            ("X = 1\0\n", "a.gin cannot be read"),
        ],
    )
    def test_small_files_of_huge_values_are_refused_at_once(self, tmp_path, text, message):
        (tmp_path / "b.gin").write_text("include 'c.gin'\n" * 9)
        (tmp_path / "c.gin").write_text("include 'd.gin'\n" * 9)
        (tmp_path / "d.gin").write_text("X = 1\n")
        file = write(tmp_path, text + "Decoding.num_lengths = %M11\n", "a.gin")
        error = refuses(config.parse, message, [file])
        assert len(str(error)) < 2_500

    @pytest.mark.parametrize("step", [1, -1])
    def test_a_chain_of_macros_has_an_end(self, tmp_path, step):
        def chain(length):
            lines = [f"M{i} = %M{i - 1}\n" for i in range(1, length)][::step]
            return write(tmp_path, "".join([*lines, "M0 = 8\n", f"ModelConfig.width = %M{length - 1}\n"]))

        config.parse([chain(99)])
        assert built(ModelConfig).width == 8
        refuses(config.parse, "deeper than 100 levels", [chain(800)])

    def test_a_wrong_value_behind_macros_is_one_line(self):
        bind("Decoding.strategy=%A A=%B B=@Padir() Padir.temperature=-1.0")
        error = refuses(built, "Padir.temperature", Decoding)
        assert error.got == -1

    def test_marks_and_line_ends_of_other_systems(self, tmp_path):
        (tmp_path / "a.gin").write_bytes(b"\xef\xbb\xbfModelConfig.width = 8\r\nModelConfig.mlp = 9\r\n")
        config.parse([str(tmp_path / "a.gin")])
        assert built(ModelConfig) == ModelConfig(width=8, mlp=9)

    def test_in_a_file_the_line_is_told(self, tmp_path):
        file = write(tmp_path, "ModelConfig.width = 8\nModelConfig.headz = 2\n")
        refuses(config.parse, "some.gin, line 2: ... headz ... did you mean 'heads'?", [file])

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (b"# K\xf6ln\n", "some.gin is not UTF-8: convert it with iconv"),
            (
                b"Decoding.seed = four\n",
                "some.gin cannot be read ... line 1 ... where VALUE is a number, a quoted text",
            ),
            (b"Decoding.rerank = @mine.Rule()\n", "'@mine.Rule()': import ... below `from __gin__ ... --allow_imports"),
            (b"import mine_of_nowhere\n", "'mine_of_nowhere': put the module's folder on PYTHONPATH"),
            (b"import my_strategies\nmy_strategies.Mine.patienze = 3\n", "line 3: ... did you mean 'patience'?"),
        ],
    )
    def test_what_to_do_is_told(self, tmp_path, text, message):
        beginning = b"from __gin__ import dynamic_registration\n" if text.startswith(b"import") else b""
        (tmp_path / "some.gin").write_bytes(beginning + text)
        allowed = ["my_strategies", "mine_of_nowhere"]
        refuses(config.parse, message, [str(tmp_path / "some.gin")], allow_imports=allowed)

    def test_a_missing_file(self):
        refuses(config.parse, "a gin file is missing: ... no_such.gin", ["no_such.gin"])


@pytest.mark.parametrize("path", SHIPPED, ids=str)
def test_a_shipped_configuration_parses_and_makes_its_objects(path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    config.parse([str(path)])  # a name that does not exist is an error here
    for item in (ModelConfig, Objective, Batching, Intervals, Cosine, Adafactor, Adam, Decoding):
        assert isinstance(built(item), item)
    if path.parts[1] == "run":
        assert isinstance(config.macro("DATASET"), str | tuple) and isinstance(config.macro("MODEL_DIR"), str)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_has_a_configuration(name, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    config.parse([f"configs/decode/{name}.gin"])
    assert type(built(Decoding).strategy) is STRATEGIES[name]


def test_there_are_shipped_configurations():
    assert SHIPPED
