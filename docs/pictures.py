"""Make the pictures of the documentation, and the README's records and terminal session, from real runs.

    python docs/pictures.py            # all pictures, the records and the session in README.md
    python docs/pictures.py grid end   # some: the names are in `main`

The commands run in a temporary directory. Pictures of the terminal are SVG; those of the report need Playwright, Pillow and a
Chromium on the PATH, that of the notebook also nbclient and ipykernel.
"""  # noqa: INP001 - a script, not a package

import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import sys
import tempfile
import termios
import time
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from rich._export_format import CONSOLE_SVG_FORMAT  # the only way to change a part of it
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 110, 44
WIDTH = 1180
"""Pixels of the browser's window."""
COLORS = 64
"""Colors of a PNG: enough for a page of text, at a third of its size."""
STOP_WHEN = re.compile(rb"(2[5-9]|3\d) of 60")
"""Ctrl-C is pressed when the screen matches this."""
SVG = re.sub(r"@font-face \{\{.*?\}\}\s*|<!--.*?-->\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
SVG = SVG.replace("Fira Code", "ui-monospace, Menlo")
"""Without the fonts that a browser would load from another host."""

DESK = '''
import random

from evaljournal import Case, Fatal, Score, durable, evaluation

ORDERS = {n: random.Random(n).choice(["shipped", "lost", "delivered"]) for n in range(60)}
DECISIONS = {"shipped": "wait", "lost": "refund", "delivered": "decline"}
CASES = [
    Case(name=f"order-{n}", input=f"Where is order {n}? I want my money back.", expected=DECISIONS[state])
    for n, state in ORDERS.items()
]


@durable(kind="model")
def chat(model, messages):
    """Simulate a model: it looks the order up, then decides; the small one is often generous."""
    number = int(messages[1]["content"].split()[3].rstrip("?"))
    if number == 17:
        raise Fatal("400 Bad Request: the prompt was rejected by the content filter")
    message = {"role": "assistant", "content": None}
    if messages[-1]["role"] == "user":
        message["tool_calls"] = [call("find_order", number)]
    elif len(messages) == 4 and model == "large" and ORDERS[number] == "lost":
        message["tool_calls"] = [call("carrier", number)]
    else:
        generous = random.Random(f"{model} {number}").random() < (0.35 if model == "small" else 0.08)
        decision = "refund" if generous else DECISIONS[ORDERS[number]]
        message["content"] = f"{decision}: the order is {ORDERS[number]}"
    usage = {"prompt_tokens": 60 * len(messages), "completion_tokens": 25}
    return {"model": {"small": "gpt-5-mini", "large": "gpt-5.1"}[model], "choices": [{"message": message}], "usage": usage}


def call(name, number):
    function = {"name": name, "arguments": f'{{"number": {number}}}'}
    return {"id": f"call-{name}", "type": "function", "function": function}


@durable(kind="tool")
def find_order(number):
    return {"order": number, "state": ORDERS[number], "days": 3 + number % 9}


@durable(kind="tool")
def carrier(number):
    return {"last_scan": "Lima", "parcel": "lost"}


@evaluation(cases=CASES, variants={"small": {"model": "small"}, "large": {"model": "large"}})
def desk(question, *, model):
    messages = [{"role": "system", "content": "You decide about refunds: wait, refund or decline."}]
    messages.append({"role": "user", "content": question})
    while tools := (reply := chat(model, messages)["choices"][0]["message"]).get("tool_calls"):
        function = tools[0]["function"]
        result = globals()[function["name"]](int(function["arguments"].split(": ")[1].rstrip("}")))
        messages += [reply, {"role": "tool", "tool_call_id": tools[0]["id"], "content": str(result)}]
    return reply["content"]


@desk.score
def decision(output, expected):
    given = output.partition(":")[0]
    return Score(given == expected, reason=f"decided {given!r}")


@desk.score
def brief(output):
    return len(output) < 60
'''


def play(command: str, *, stop: bool = False) -> tuple[str, int]:
    """Run a command in a terminal; return its output and exit code. With `stop`, press Ctrl-C at `STOP_WHEN`."""
    arguments = shlex.split(command)
    arguments[0] = shutil.which(arguments[0]) or arguments[0]
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # It may be ignored here, and children inherit that.
        environment = {name: value for name, value in os.environ.items() if name not in {"CI", "NO_COLOR"}}
        size = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        os.execve(arguments[0], arguments, {**environment, **size})  # noqa: S606
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    output, deadline = b"", time.monotonic() + 120
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                output += os.read(terminal, 65_536)
            except OSError:  # The command has ended.
                break
        if stop and STOP_WHEN.search(output):
            os.write(terminal, b"\x03")
            stop = False
    else:
        os.kill(pid, signal.SIGKILL)
    os.close(terminal)
    return output.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def frames(output: str) -> list[Text]:
    """Split the output of a live screen into its frames; the last frame remains on the screen."""
    parts = re.split(r"\r?(?:\x1b\[2K)?(?:\x1b\[1A\x1b\[2K)+", output)
    here = f"{Path.cwd()}{os.sep}"
    texts = [re.sub(r"\x1b\[[0-9;?]*(?!m)[A-Za-z]|\x1b\][^\x07]*\x07|\r|\^C", "", part).replace(here, "") for part in parts]
    return [Text.from_ansi(text.strip("\n")) for text in texts]


def last_frame(command: str) -> Text:
    """Run a command; return what remains on the screen."""
    return frames(play(command)[0])[-1]


def screen_and_end() -> tuple[Text, Text, int]:
    """Run the quick start and interrupt it; return a frame of its screen, what it printed in the end, and its exit code."""
    output, code = play("evaljournal run examples/quickstart.py", stop=True)
    screens = frames(output)
    return next(frame for frame in screens if STOP_WHEN.search(frame.plain.encode())), screens[-1], code


def draw(name: str, command: str, text: Text) -> None:
    """Write a picture of a terminal."""
    console = Console(record=True, width=COLUMNS, file=StringIO())
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold"), "\n"), text, "\n", sep="")
    svg = console.export_svg(title=command, theme=MONOKAI, code_format=SVG, unique_id=name)
    (PICTURES / f"{name}.svg").write_text(svg, encoding="utf-8")


def photograph(name: str, report: Path, state: str = "", *, heading: str = "", height: int = 900) -> None:
    """Write a picture of a report: with `state` as the fragment of its URL, from its start or from a heading."""
    from PIL import Image  # noqa: PLC0415  # only these pictures need it
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  # the same

    target = PICTURES / f"{name}.png"
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox", "--font-render-hinting=none"])
        page = browser.new_page(viewport={"width": WIDTH, "height": height})
        page.goto(report.resolve().as_uri() + state)
        page.wait_for_selector("main:not([aria-busy])")
        if heading:
            page.get_by_role("heading", name=heading, exact=True).evaluate("element => element.scrollIntoView()")
        page.mouse.move(0, 0)
        page.wait_for_timeout(300)
        page.screenshot(path=target)
        browser.close()
    Image.open(target).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(target, optimize=True)


NOTEBOOK_STYLE = """
body { font: 13px system-ui, sans-serif; margin: 16px }
code { display: block; background: #f5f5f5; border: 1px solid #ddd; padding: 8px; margin-top: 12px; white-space: pre }
table { border-collapse: collapse; font-size: 12px } th, td { padding: 5px 9px } tr:nth-child(odd) td { background: #f5f5f5 }
p { margin: 8px 0 } pre { margin: 10px 0 }
"""


def notebook() -> None:
    """Execute a notebook; write a picture of a cell in the middle of a run, and of the outcome."""
    from html import escape  # noqa: PLC0415  # only this picture needs it

    from nbclient import NotebookClient  # noqa: PLC0415  # the same
    from nbformat import v4  # noqa: PLC0415  # the same

    updates: list[str] = []

    class Client(NotebookClient):
        def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
            if msg["msg_type"] == "update_display_data":
                updates.append(msg["content"]["data"]["text/html"])
            return super().process_message(msg, cell, cell_index)

    sources = ["outcome = await evaljournal.arun(capitals)", "outcome"]
    start = "import evaljournal\nfrom examples.quickstart import capitals"
    executed = v4.new_notebook(cells=[v4.new_code_cell(source) for source in (start, *sources)])
    Client(executed, kernel_name="python3", timeout=120).execute()
    outputs = [updates[len(updates) // 2], executed.cells[-1].outputs[0]["data"]["text/html"]]
    cells = [f"<code>{escape(source)}</code>{output}" for source, output in zip(sources, outputs, strict=True)]
    page = Path("notebook.html")
    page.write_text(f"<!doctype html><meta charset=utf-8><style>{NOTEBOOK_STYLE}</style><main>{''.join(cells)}</main>")
    photograph("notebook", page, height=720)


def records() -> str:
    """Return the records of a trial that was rate limited once, as Markdown."""
    text = last_frame("evaljournal log capitals --type retry_scheduled").plain
    trial = next(match[1] for match in re.finditer(r"trial=(\S+) .*rate_limited", text))
    command = f"evaljournal log capitals {trial} | grep -v noted | cut -c -7,24-110"
    lines = [(line[:7] + line[23:110]).rstrip() for line in last_frame(f"evaljournal log capitals {trial}").plain.splitlines()]
    return "\n".join(["```", f"$ {command}", *(line for line in lines if " noted " not in line), "```"])


def session(stop_output: Text, code: int) -> str:
    """Resume and verify the quick start; return the README's session as Markdown."""
    resume_output, resume_code = play("evaljournal resume")
    return f"""```
$ evaljournal run examples/quickstart.py
^C
{_shortened(stop_output)}
(exit code {code})

$ evaljournal resume
{_shortened(frames(resume_output)[-1])}
(exit code {resume_code})

$ evaljournal verify
{last_frame("evaljournal verify").plain}
```"""


def _shortened(ending: Text) -> str:
    """Return an ending without its failing outputs and latencies."""
    lines = ending.plain.splitlines()
    first = next(number for number, line in enumerate(lines) if " outputs fail:" in line)
    return "\n".join([*lines[:first], "  …", lines[-1]])


def replace_part(name: str, text: str) -> None:
    """Replace a generated part of the README."""
    readme = ROOT / "README.md"
    begin, end = f"<!-- {name}: generated by docs/pictures.py -->\n", f"\n<!-- /{name} -->"
    start, _, tail = readme.read_text(encoding="utf-8").partition(begin)
    _, mark, tail = tail.partition(end)
    if not mark:
        sys.exit(f"{readme} has no {begin} … {end}")
    readme.write_text(f"{start}{begin}{text}{mark}{tail}", encoding="utf-8")


def main() -> None:
    """Make the pictures that are named on the command line, or all of them."""
    directory = Path(tempfile.mkdtemp())
    shutil.copytree(ROOT / "examples", directory / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    (directory / "desk.py").write_text(DESK, encoding="utf-8")
    PICTURES.mkdir(exist_ok=True)
    os.chdir(directory)
    screen, end, code = screen_and_end()
    parts = {"session": session(end, code)}
    parts["records"] = records()
    finished = last_frame("evaljournal run desk.py")
    play("evaljournal report capitals -o capitals.html")
    play("evaljournal report runs/desk/0001 -o desk.html")
    play("evaljournal report @small @large -o compared.html")
    show, compare = "evaljournal show desk --failing", "evaljournal compare @small @large"
    actions: dict[str, Callable[[], None]] = {
        **{name: partial(replace_part, name, text) for name, text in parts.items()},
        "live": lambda: draw("live", "evaljournal run examples/quickstart.py", screen),
        "end": lambda: draw("end", "evaljournal run desk.py", finished),
        "show": lambda: draw("show", show, last_frame(show)),
        "status": lambda: draw("status", "evaljournal status capitals", last_frame("evaljournal status capitals")),
        "compare": lambda: draw("compare", compare, last_frame(compare)),
        "report": lambda: photograph("report", Path("capitals.html")),
        "drawer": lambda: photograph("drawer", Path("desk.html"), "#trial=order-5%40small", height=760),
        "grid": lambda: photograph("grid", Path("desk.html"), heading="Results", height=760),
        "comparison": lambda: photograph("comparison", Path("compared.html")),
        "notebook": notebook,
    }
    for name in sys.argv[1:] or actions:
        actions[name]()
    os.chdir(ROOT)
    shutil.rmtree(directory)


if __name__ == "__main__":
    main()
