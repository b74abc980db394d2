"""promptfoo and evaljournal send the same requests for one configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.promptfoo.runs import run_promptfoo
from tests.runner_cli.commands import evaljournal
from tests.server import Server

FILES = {
    "p.txt": 'First {{a}}\n---\n\nSecond\n  {{ b }} {"x": 1}\n',
    "chat.json": '[{"role": "system", "content": "You {json} {{a}}"}, {"role": "user", "content": "{{ n }} and {{b}}"}]',
    "chat.yaml": '- role: system\n  content: sys {{a}}\n- role: user\n  content: "{{user.name}} {{user.tags[0]}}"\n',
    "v.txt": "  from file\n\n",
    "v.yaml": "k: [1, 2.0, yes]\nz: null\n",
    "t.csv": 'a,b,__expected\n"x, y","line1\nline2",contains:x\n 1 ,{{a}}!,\n',
}
CONFIG = r"""
prompts:
  - 'Inline {{a}} {{missing}} end.'
  - |
    Multi {{a}}
    {{ b }}
  - file://p.txt
  - file://chat.json
  - {id: file://chat.yaml, label: yam}
providers:
  - id: openai:chat:m
    config: {apiBaseUrl: CHAT}
  - id: ENDPOINT
    config:
      method: POST
      headers: {Content-Type: application/json}
      body: {input: '{{prompt}}', extra: 'hello {{a}}', num: 5}
      transformResponse: json.output
defaultTest:
  vars: {n: 5, user: {name: Ada, tags: [t1, t2]}}
tests:
  - vars: {a: [one, 'two {{n}}'], b: plain}
  - vars: {a: file://v.txt, b: file://v.yaml, n: 1.50}
  - vars: {a: "trail\n", b: "{{a}} and {{n}}", n: true}
  - vars: {a: 'quo"te\\ é', b: "<b>&amp; {not} {% raw", n: 1e-7}
  - file://t.csv
scenarios:
  - config: [{vars: {a: s1}}, {vars: {a: s2}}]
    tests: [{vars: {b: t}}, {vars: {b: "{{a}}{{a}}"}}]
"""


def write_config(name: str, server: Server) -> Path:
    """Write the configuration with the addresses of a name, which separates the requests."""
    addresses = {"CHAT": server.url(f"{name}-chat", "ok", "v1"), "ENDPOINT": server.url(f"{name}-endpoint", "ok")}
    text = CONFIG
    for word, address in addresses.items():
        text = text.replace(word, address)
    path = Path(f"{name}.yaml").absolute()
    path.write_text(text)
    return path


def sent(name: str, server: Server) -> list[Any]:
    """Return the bodies of the requests under a name, in a fixed order; 0 and 0.0 are equal."""
    return sorted(
        (json.loads(request["body"]) for request in server.requests(name)), key=lambda body: json.dumps(body, sort_keys=True)
    )


@pytest.mark.exhaustive
def test_requests_are_equal(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, variables, files, products, scenarios and bodies are filled in the same way."""
    monkeypatch.setenv("OPENAI_API_KEY", "test")
    for name, content in FILES.items():
        Path(name).write_text(content)
    run_promptfoo(write_config("theirs", server), Path("results.json").absolute())
    assert 0 == evaljournal("import", write_config("ours", server).name).exit_code
    assert 0 == evaljournal("run", "--config", "evals/ours.toml", "-o", "run").exit_code

    assert 66 == len(sent("ours-chat", server))
    for task in ("chat", "endpoint"):
        assert sent(f"theirs-{task}", server) == sent(f"ours-{task}", server)
