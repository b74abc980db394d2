"""Random promptfoo configurations: an import never fails with a traceback, and writes everything or nothing."""

import contextlib
import shutil
import tomllib
from pathlib import Path
from typing import Any, Final

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from tests.runner_cli.commands import evaljournal

TEMPLATES: Final = [
    *("{{a}}", "{{ a.b }}", "{{a | upper}}", "{% if a %}x{% endif %}", "{{", "}}", "{a}", "{{env.KEY}}", "{{_conversation}}"),
]
FILES: Final = [
    *("file://t.csv", "file://t.jsonl", "file://p.txt", "file://p.json"),
    *("file://missing", "file://*.txt", "file://c.py:f", "file:///etc/passwd"),
]
PROVIDERS: Final = [
    *("openai:gpt-4.1", "openai:chat:x", "anthropic:messages:c", "google:gemini-1", "openrouter:a/b"),
    *("http://h/p", "exec: true", "python:c.py", "echo", ""),
]
TYPES: Final = """
equals contains not-icontains contains-any is-json regex latency python llm-rubric factuality similar assert-set levenshtein
"""
KEYS: Final = """
id label raw config vars assert type value threshold weight metric provider options tests body url temperature max_tokens apiKey
apiBaseUrl headers transformResponse queryParams description metadata path text a b $ref rubricPrompt prompts providers
"""

texts = st.one_of(
    st.text(max_size=8),
    st.sampled_from([*TEMPLATES, *FILES, *PROVIDERS, *TYPES.split()]),
    st.lists(st.sampled_from(TEMPLATES)).map("".join),
)
scalars = st.one_of(texts, st.none(), st.booleans(), st.integers(), st.floats(), st.dates())
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS.split()), inner, max_size=4)),
    max_leaves=8,
)


def mostly(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return values of the grammar, and now and then anything else."""
    return st.integers(0, 14).flatmap(lambda number: anything if number == 0 else strategy)


def record(
    required: dict[str, st.SearchStrategy[Any]] | None = None, /, **fields: st.SearchStrategy[Any]
) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(required or {}, optional={name: mostly(strategy) for name, strategy in fields.items()})


numbers = st.sampled_from([0, 0.5, 1, 3])
variables = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), mostly(st.one_of(texts, st.lists(texts, max_size=3), st.just({"b": 1}))), max_size=3
)
plain_assertions = record(
    {"type": st.sampled_from(TYPES.split())},
    value=texts,
    threshold=numbers,
    weight=numbers,
    metric=texts,
    provider=st.sampled_from(PROVIDERS),
)
assertion_sets = record({"type": st.just("assert-set"), "assert": st.lists(plain_assertions, max_size=2)})
assertions = st.lists(mostly(st.one_of(plain_assertions, assertion_sets)), max_size=3)
options = record(provider=st.sampled_from(PROVIDERS), rubricPrompt=texts, transform=texts, disableVarExpansion=st.booleans())
tests = record(
    description=texts, vars=variables, **{"assert": assertions}, threshold=numbers, options=options, metadata=variables
)
http = record(
    url=st.just("http://h/p"),
    method=st.sampled_from(["GET", "POST", "PUT"]),
    body=st.dictionaries(st.sampled_from("ab"), texts),
    queryParams=variables,
    transformResponse=st.sampled_from(["json.a[0]", "json", "text", "x => x"]),
)
chat = record(
    temperature=numbers,
    max_tokens=st.integers(0, 9),
    apiKey=texts,
    apiBaseUrl=texts,
    headers=st.dictionaries(texts, texts, max_size=2),
    passthrough=anything,
    generationConfig=anything,
    response_format=anything,
)
providers = st.one_of(
    st.sampled_from(PROVIDERS),
    record({"id": st.sampled_from(PROVIDERS)}, config=st.one_of(chat, http), label=texts, prompts=st.lists(texts, max_size=2)),
)
prompts = st.one_of(texts, record(id=texts, label=texts, raw=texts), st.just('[{"role": "user", "content": "{{a}}"}]'))
configurations = record(
    description=texts,
    prompts=st.lists(prompts, min_size=1, max_size=3),
    providers=st.lists(providers, min_size=1, max_size=3),
    tests=st.one_of(st.lists(st.one_of(tests, texts), max_size=3), texts),
    defaultTest=tests,
    scenarios=st.lists(record(config=st.lists(tests, max_size=2), tests=st.lists(tests, max_size=2)), max_size=2),
    evaluateOptions=record(repeat=st.integers(0, 3), maxConcurrency=st.integers(0, 3)),
    env=variables,
)


def check(content: bytes) -> None:
    """Import a file; nothing is written unless the exit code is 0, and then the configuration can be read."""
    Path("qa.yaml").write_bytes(content)
    before = {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    result = evaljournal("import", "qa.yaml", "--partial")
    assert result.exit_code in {0, 2}, (result.stderr, result.exception)
    assert before == {path: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    assert Path("evals").exists() == (result.exit_code == 0)
    if result.exit_code == 0:
        for path in Path("evals").glob("*.toml"):
            tomllib.loads(path.read_text())
        for path in Path("evals").glob("*.py"):
            compile(path.read_text(), path, "exec")
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree("evals")


@pytest.fixture
def files() -> None:
    Path("t.csv").write_text("a,__expected\n1,contains:x\n")
    Path("t.jsonl").write_text('{"vars": {"a": 1}}\n')
    Path("p.txt").write_text("{{a}}\n---\n{{b}}")
    Path("p.json").write_text('[{"role": "user", "content": "{{a}}"}]')
    Path("c.py").write_text("import os; os.abort()")


EDITS: Final = st.lists(st.tuples(st.integers(0, 2000), st.binary(max_size=3)), max_size=2)


@pytest.mark.parametrize(
    ("count", "edits"),
    [(20, st.just([])), pytest.param(5_000, EDITS, marks=pytest.mark.exhaustive)],
)
@pytest.mark.usefixtures("files")
def test_random_configurations(count: int, edits: Any) -> None:
    """Configurations from the grammar, with wrong parts here and there; many of them, also with random bytes in the text."""

    @hypothesis.settings(max_examples=count)
    @hypothesis.given(configurations, edits)
    def run(value: Any, edits: list[tuple[int, bytes]]) -> None:
        with contextlib.suppress(UnicodeEncodeError):
            content = yaml.safe_dump(value, allow_unicode=True).encode()
            for position, inserted in edits:
                content = content[:position] + inserted + content[position + 1 :]
            check(content)

    run()


@pytest.mark.usefixtures("files")
def test_random_bytes() -> None:
    """Any bytes are read or rejected."""
    hypothesis.settings(max_examples=100)(hypothesis.given(st.binary(max_size=200))(check))()
