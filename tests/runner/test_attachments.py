"""Images and files in columns of a dataset: what is sent and recorded, and which values are errors of their case."""

import base64
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from evaljournal import UsageError
from evaljournal.journal.disk.files import Files
from evaljournal.journal.events import AttemptFailed, AttemptStarted, StepCompleted
from evaljournal.runner.calls.chat import Chat
from evaljournal.runner.data import attachments
from evaljournal.runner.data.attachments import MAX_SIZE, InvalidAttachment, attachments_of
from evaljournal.runner.data.case import Case
from evaljournal.runner.data.dataset import Dataset
from evaljournal.runner.scorers.llm_judge import Judge
from tests.runs import define_real, events, outputs, run_real
from tests.server import Server

PNG: Final = b"\x89PNG\r\n\x1a\n" + bytes(range(40))
PNG_URL: Final = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
PDF: Final = b"%PDF-1.7 a document"
PDF_URL: Final = f"data:application/pdf;base64,{base64.b64encode(PDF).decode()}"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with a dataset, an image and a document; the image is in a subdirectory."""
    directory = tmp_path / "data"
    (directory / "images").mkdir(parents=True)
    (directory / "images" / "a.png").write_bytes(PNG)
    (directory / "a.pdf").write_bytes(PDF)
    return directory


def write(data: Path, *rows: dict[str, Any]) -> Path:
    file = data / "qa.jsonl"
    file.write_text("".join(f"{json.dumps({'id': f'c{number}', **row})}\n" for number, row in enumerate(rows, 1)))
    return file


def sent_contents(server: Server, name: str) -> list[Any]:
    """Return the content of the last message of each request."""
    return [json.loads(request["body"])["messages"][-1]["content"] for request in server.requests(name)]


def test_images_and_files_are_sent(server: Server, path: Path, name: str, data: Path) -> None:
    """Values of the named columns become parts of the user message; null and an empty text add none."""
    file = write(
        data,
        {"input": "q", "image": "images/a.png", "document": "a.pdf"},
        {"input": "q", "image": [PNG_URL, "./images/a.png"], "document": PDF_URL},
        {"input": "q", "image": '["images/a.png"]', "document": ""},
        {"input": "q", "image": None, "document": None, "other": "images/a.png"},
    )
    chat = Chat("m", base_url=server.url(name, "reply:ok", "v1"), images=["image"], files="document")
    run_real(define_real(chat, file, slots=1), path)

    text, image = {"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": PNG_URL}}
    document = {"type": "file", "file": {"filename": "a.pdf", "file_data": PDF_URL}}
    named_document = {"type": "file", "file": {"filename": "document.pdf", "file_data": PDF_URL}}
    expected = [[text, image, document], [text, image, image, named_document], [text, image], "q"]
    assert expected == sent_contents(server, name)
    assert ["ok"] * 4 == outputs(path)


def test_recorded_requests_have_no_content(server: Server, path: Path, name: str, data: Path) -> None:
    """A recorded request has the path, digest and size of a file; its content is not in the journal."""
    file = write(data, {"input": "q", "image": "images/a.png"})
    chat = Chat("m", base_url=server.url(name, "ok", "v1"), images=["image"])
    run_real(define_real(chat, file), path)
    (started,) = events(path, AttemptStarted)

    image = {"column": "image", "path": "images/a.png", "sha256": hashlib.sha256(PNG).hexdigest(), "size": len(PNG)}
    assert {"model": "m", "messages": [{"role": "user", "content": "q"}], "attachments": [image]} == started.request
    assert PNG_URL[-30:].encode() not in b"".join(journal.read_bytes() for journal in path.glob("journal-*"))


def test_the_first_turn_has_them(server: Server, path: Path, name: str, data: Path) -> None:
    """In a conversation, each call sends the images with the first turn; a step records their digests."""
    file = write(data, {"turns": ["a", "b"], "image": "images/a.png"})
    chat = Chat("m", base_url=server.url(name, "reply:ok", "v1"), turns="turns", images=["image"])
    run_real(define_real(chat, Dataset(file, input_key="turns")), path)
    bodies = [json.loads(request["body"])["messages"] for request in server.requests(name)]

    first = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": PNG_URL}}]}
    assert [[first], [first, {"role": "assistant", "content": "ok"}, {"role": "user", "content": "b"}]] == bodies
    first_step, _ = events(path, StepCompleted)
    assert [hashlib.sha256(PNG).hexdigest()] == [item["sha256"] for item in first_step.input["attachments"]]


def _symlink(path: str, target: str) -> Callable[[Path], str]:
    def create(data: Path) -> str:
        (data / path.partition("/")[0]).symlink_to(data / target)
        return path

    return create


def _pipe(data: Path) -> str:
    os.mkfifo(data / "pipe.png")
    return "pipe.png"


def _outside(data: Path) -> str:
    (data.parent / "secret.png").write_bytes(PNG)
    return "../secret.png"


def _hidden(data: Path) -> str:
    (data / "images" / ".git").mkdir()
    (data / "images" / ".git" / "a.png").write_bytes(PNG)
    return "images/.git/a.png"


def _too_large(data: Path) -> str:
    with (data / "large.png").open("wb") as file:
        file.write(PNG)
        file.truncate(MAX_SIZE + 1)
    return "large.png"


def _file(name: str, content: bytes = b"text") -> Callable[[Path], str]:
    def create(data: Path) -> str:
        (data / name).write_bytes(content)
        return name

    return create


def _value(value: Any) -> Callable[[Path], Any]:
    return lambda _: value


_LARGE_URL: Final = f"data:image/png;base64,{base64.b64encode(PNG + bytes(MAX_SIZE)).decode()}"
BAD_VALUES: Final[dict[str, tuple[Callable[[Path], Any], str]]] = {
    "symlink": (_symlink("link.png", "images/a.png"), "cannot be read: a symlink"),
    "below a symlink": (_symlink("link/a.png", "images"), "its directory is a symlink or a file"),
    "pipe": (_pipe, "not a regular file"),
    "directory": (_value("images"), "not a regular file"),
    "outside": (_outside, "is not a path relative to the dataset"),
    "absolute": (lambda data: str(data / "images" / "a.png"), "is not a path relative to the dataset"),
    "inner dots": (_value("images/../images/a.png"), "is not a path relative to the dataset"),
    "the directory itself": (_value("."), "is not a path relative to the dataset"),
    "hidden file": (_file(".secret.png", PNG), "'.secret.png' is a hidden file"),
    "hidden directory": (_hidden, "'images/.git/a.png' is a hidden file, or in a hidden directory"),
    "missing file": (_value("b.png"), "No such file"),
    "URL": (_value("https://host/a.png"), "URLs are not fetched"),
    "NUL byte": (_value("a\0.png"), "is not a path"),
    "too large": (_too_large, "larger than 20 MiB"),
    "unknown extension": (_file("a.xyzzy"), "unknown file extension"),
    "no image": (_file("a.txt"), "'text/plain' is not a supported image type"),
    "another image": (_file("a.jpg", PNG), "the content is not image/jpeg"),
    "empty image": (_file("empty.png", b""), "the content is not image/png"),
    "number": (_value(7), "must have a path"),
    "nested list": (_value([["images/a.png"]]), "must have a path"),
    "bad data URL": (_value("data:image/png,abc"), "is not of the form"),
    "bad base64": (_value("data:image/png;base64,@@@"), "not valid base64"),
    "wrong media type": (_value(PNG_URL.replace("png", "gif", 1)), "the content is not image/gif"),
    "large data URL": (_value(_LARGE_URL), "larger than 20 MiB"),
}


@pytest.mark.parametrize("problem", BAD_VALUES)
def test_a_bad_value_is_an_error_of_its_case(server: Server, path: Path, name: str, data: Path, problem: str) -> None:
    """The trial of a case with a bad value has an error, without a call and a retry; other cases are not affected."""
    create, message = BAD_VALUES[problem]
    file = write(data, {"input": "q", "image": create(data)}, {"input": "q", "image": "images/a.png"})
    chat = Chat("m", base_url=server.url(name, "reply:ok", "v1"), images=["image"])
    run_real(define_real(chat, file), path)
    (failed,) = events(path, AttemptFailed)

    assert ("c1", "fatal", "evaljournal.AttachmentError", "") == (failed.trial, failed.category, failed.error, failed.traceback)
    assert message in failed.message
    assert (["ok"], 1) == (outputs(path), len(server.requests(name)))


def test_a_missing_column(server: Server, path: Path, name: str, data: Path) -> None:
    """A case without the column has an error; it may be misspelled."""
    chat = Chat("m", base_url=server.url(name, "reply:ok", "v1"), images=["image"])
    run_real(define_real(chat, write(data, {"input": "q", "picture": "images/a.png"})), path)

    assert ["has no field {image}" in event.message for event in events(path, AttemptFailed)] == [True]
    assert [] == server.requests(name)


def test_resume_notices_a_changed_file(server: Server, path: Path, name: str, data: Path) -> None:
    """A file is part of its case: if it changes, `resume` rejects the change; adopted, only that case runs again."""
    (data / "b.png").write_bytes(PNG)
    file = write(data, *({"input": "q", "image": image} for image in ("images/a.png", "b.png", None)))
    chat = Chat("m", base_url=server.url(name, "reply:ok,reply:ok,401,reply:ok", "v1"), images=["image"])
    run_real(define_real(chat, file, slots=1), path)
    (data / "b.png").write_bytes(PNG + b"changed")
    with pytest.raises(UsageError, match="1 case changed: 'c2'"):
        run_real(define_real(chat, file, slots=1), path, resume=True)
    run_real(define_real(chat, file, slots=1), path, resume=True, adopt=True)

    assert ["c1", "c2", "c2", "c3", "c3"] == sorted(event.trial for event in events(path, AttemptStarted))


def test_a_file_that_changes_during_the_run(data: Path) -> None:
    """The content that is sent is that of the fingerprint; a file that was changed meanwhile is an error."""
    ((_, case),) = Dataset(write(data, {"input": "q", "image": "images/a.png"})).with_files(["image"]).read()
    (data / "images" / "a.png").write_bytes(PNG + b"changed")

    with pytest.raises(UsageError, match="was changed after the case was read"):
        attachments_of(case, {"image": ["image"]})


def test_names_of_cases_without_an_id(data: Path) -> None:
    """A case is named after its content, its files included; equal cases are numbered."""
    (data / "b.png").write_bytes(PNG + b"b")
    rows = [{"input": "q", "image": image} for image in ("images/a.png", "b.png", "b.png")]

    def names() -> list[str]:
        (data / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return [trial.case.name for trial in Dataset(data / "rows.jsonl").with_files(["image"]).select()]

    first, second, third = names()
    (data / "b.png").write_bytes(PNG + b"c")
    new_first, new_second, _ = names()

    assert (f"{second}-2", True) == (third, first != second)
    assert (first, True) == (new_first, second != new_second)


def test_cases_in_python(server: Server, path: Path, name: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of cases that are not from a file are relative to the working directory."""
    monkeypatch.chdir(data)
    chat = Chat("m", base_url=server.url(name, "reply:ok", "v1"), prompt="What is this?", images=["image"])
    cases = [Case(input="x", metadata={"image": "images/a.png"}), Case(input="y", metadata={"image": PNG_URL})]
    run_real(define_real(chat, cases), path)

    text, image = {"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": PNG_URL}}
    assert [[text, image]] * 2 == sent_contents(server, name)


def test_a_document_of_many_cases(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that consecutive cases name is read once."""
    opened: list[str] = []

    def open_file(_: Files, path: str, flags: int, parents: int) -> int:
        opened.append(path)
        return os.open(path, flags, parents)

    monkeypatch.setattr(Files, "open", open_file)
    rows = [{"input": str(number), "document": "a.pdf" if number < 3 else "images/a.png"} for number in range(4)]
    digests = [case.files for _, case in Dataset(write(data, *rows)).with_files(["document"]).read()]

    assert [str(data / "a.pdf"), str(data / "images" / "a.png")] == opened
    assert [hashlib.sha256(PDF).hexdigest()] * 3 == [files["a.pdf"]["sha256"] for files in digests[:3]]


def test_many_images_of_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """All images of a case together have a maximum size, because they are in memory at once."""
    monkeypatch.setattr(attachments, "_MAX_CASE_SIZE", len(PNG_URL))

    with pytest.raises(InvalidAttachment, match="the images and files of the case are larger than"):
        attachments_of(Case(input="q", metadata={"image": [PNG_URL] * 9}), {"image": ["image"]})


def test_the_estimate_of_a_case_with_images() -> None:
    """The tokens of the input are unknown, those of the output are limited."""
    chat = Chat("m", base_url="http://h", images=["image"], max_tokens=50)

    assert {"output_tokens": 50} == chat.estimate(Case(input="q", metadata={"image": PNG_URL}))


def test_judges_take_no_images() -> None:
    """A judge with columns of images is a usage error."""
    with pytest.raises(UsageError, match="remove prompt, messages, turns, images and files"):
        Judge(chat=Chat("m", base_url="http://h", images=["image"]))
