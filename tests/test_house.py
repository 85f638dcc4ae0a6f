"""Limits of size and rules of naming that keep padir readable; an exception stands here by name, with its reason."""

import ast
import collections
import io
import tokenize
from pathlib import Path

import padir

ROOT = Path(padir.__file__).parent
TESTS = Path(__file__).parent

MAX_PARAMETERS, MAX_CODE_LINES, MAX_FILE_LINES, MAX_TEST_NAME = 8, 60, 400, 70

MANY_PARAMETERS: dict[str, str] = {
    "translator.py:Translator.translate": "each parameter is a wish that users have for one call",
    "decoding/autoregressive.py:write_targets": "a jitted program: arrays and static settings are its arguments",
}
LONG_FUNCTIONS: dict[str, str] = {}
LONG_FILES: dict[str, str] = {}

# A docstring that opens with one of these words says what its neighbours know and a search does not find.
VAGUE = {"What", "Whether", "Where", "Which", "Whose", "How", "Why", "Of", "It", "Its", "They", "Those", "That", "Such"}


def sources():
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), path.read_text()


def functions(tree, prefix=""):
    """Every function of a module with its dotted name; a nested function's lines count as its own."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not isinstance(node, ast.ClassDef):
                yield prefix + node.name, node
            yield from functions(node, f"{prefix}{node.name}.")
        else:
            yield from functions(node, prefix)


def code_lines(text):
    """Numbers of the lines that hold code: no blank lines, comments or docstrings."""
    lines = set()
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return lines


def parameters(node):
    arguments = node.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def check(found, allowed):
    """Each thing beyond the limit is an exception with a reason, and each exception still is beyond the limit."""
    assert found - set(allowed) == set(), "beyond the limit: split it, or name it above with the reason"
    assert set(allowed) - found == set(), "within the limit by now: take it off the list"
    assert all(len(reason) > 20 for reason in allowed.values())


def test_functions_have_few_parameters():
    found = {
        f"{name}:{function}"
        for name, text in sources()
        for function, node in functions(ast.parse(text))
        if len(parameters(node)) > MAX_PARAMETERS
    }
    check(found, MANY_PARAMETERS)


def test_functions_are_short():
    found = set()
    for name, text in sources():
        lines = code_lines(text)
        for function, node in functions(ast.parse(text)):
            if len(lines & set(range(node.lineno, node.end_lineno + 1))) > MAX_CODE_LINES:
                found.add(f"{name}:{function}")
    check(found, LONG_FUNCTIONS)


def test_files_are_read_in_one_sitting():
    check({name for name, text in sources() if text.count("\n") > MAX_FILE_LINES}, LONG_FILES)


def test_class_names_are_unique():
    places = collections.defaultdict(list)
    for name, text in sources():
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_docstrings_open_with_something_to_search_for():
    found = []
    for name, text in sources():
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                words = (ast.get_docstring(node) or "").split()
                if words and words[0].strip(",.:;") in VAGUE:
                    found.append(f"{name}:{getattr(node, 'name', 'module')}: {' '.join(words[:6])}")
    assert found == []


def test_names_of_tests_are_short():
    paths = sorted(TESTS.rglob("test_*.py"))
    names = [name.rpartition(".")[2] for path in paths for name, _ in functions(ast.parse(path.read_text()))]
    assert [name for name in names if name.startswith("test_") and len(name) >= MAX_TEST_NAME] == []
