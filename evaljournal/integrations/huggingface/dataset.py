"""A dataset of the Hugging Face Hub, read over HTTP: Parquet, JSONL and CSV files of one commit, never code.

- A branch or a tag is resolved to its commit once; what is recorded, and what a resumed run reads, is that commit.
- Files are read in ranges as rows are needed, and not stored: `--limit 10` of a large file reads its beginning. Of a Parquet
  file, the footer and the first row groups are read.
- The token of `HF_TOKEN` is in requests to the host of the hub only. The hub redirects downloads to other hosts, which get
  none; a redirect from https to http is an error.
"""

import io
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from tempfile import TemporaryFile
from types import SimpleNamespace
from typing import IO, Any, Final, cast
from urllib.parse import quote, urlsplit

import orjson

from evaljournal.replay.provider.reports import fields_of, objects_of
from evaljournal.replay.text import printable
from evaljournal.runner.data import readers
from evaljournal.runner.data.remote import RemoteCases
from evaljournal.runner.errors import UsageError
from evaljournal.runner.secrets.masking import add_secret

_PLACE: Final = re.compile(r"(?P<name>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^:]+))?(?::(?P<part>.+))?", re.ASCII)
_SUFFIXES: Final = (".parquet", ".jsonl", ".ndjson", ".csv")
_SPLIT: Final = re.compile(r"(?:^|[/_.-])(train|test|validation|valid|val|dev|eval)(?=[/_.-])")
"""The name of a split in the path of a file, for a dataset whose card describes no files."""
_BLOCK: Final = 1 << 20
"""Minimum bytes of a request."""
_TIMEOUT: Final = 30.0
_TRIES: Final = 4
_RETRIED: Final = {408, 429, 500, 502, 503, 504}
_MAX_INFO: Final = 64 << 20
"""Maximum bytes of the description of a dataset."""
_MAX_LISTED: Final = 12


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Redirects keep the token on the same host only, and never leave https."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:  # noqa: PLR0917  # urllib's
        old, new = urlsplit(req.full_url), urlsplit(newurl)
        if new.scheme not in {"https", old.scheme}:
            raise urllib.error.HTTPError(req.full_url, code, f"redirected to {new.scheme}", headers, fp)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and (new.scheme, new.netloc) == (old.scheme, old.netloc):
            for name, value in req.unredirected_hdrs.items():
                request.add_unredirected_header(name, value)
        return request


class HubCases(RemoteCases):
    def __init__(self, place: str) -> None:
        super().__init__(place)
        match = _PLACE.fullmatch(place)
        if match is None:
            raise UsageError(f"hf://{printable(place)} is no dataset; write hf://owner/name[@revision][:config/split]")
        self._name, self._revision, self._part = match["name"], match["revision"] or "main", match["part"]
        self._hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
        self._opener = urllib.request.build_opener(_Redirects)

    @property
    def stem(self) -> str:
        return self._name.rpartition("/")[2]

    @property
    def address(self) -> str:
        return f"hf://{self._name}@{self._info['sha']}:{self._files[0]}"

    def rows(self, delimiter: str | None) -> Iterator[tuple[int, Mapping[str, Any]]]:
        number = 0
        for path in self._files[1]:
            file = _HubFile(self, path)
            for _, row in readers.rows(cast("Path", file), delimiter if file.suffix == ".csv" else None):
                number += 1
                yield number, row

    def open(self, url: str, first: int | None = None, last: int | None = None) -> Any:
        """Return the response to a request, of a range of bytes; it is repeated if the hub is unavailable."""
        request = urllib.request.Request(url)  # noqa: S310  # the scheme is that of the hub
        if first is not None:
            request.add_header("Range", f"bytes={first}-{last}")
        if token := os.environ.get("HF_TOKEN", "").strip():
            add_secret(token)
            request.add_unredirected_header("Authorization", f"Bearer {token}")

        for attempt in range(1, _TRIES + 1):
            try:
                return self._opener.open(request, timeout=_TIMEOUT)
            except OSError as exc:  # urllib's errors are of this type.
                status = None
                if isinstance(exc, urllib.error.HTTPError):
                    status = exc.code
                    exc.close()
                if attempt == _TRIES or (status is not None and status not in _RETRIED):
                    reason = printable(str(getattr(exc, "reason", None) or exc), 200)
                    raise UsageError(f"{url}: {status or ''} {reason}".strip(), hint=_hint(status)) from exc
            time.sleep(2 ** (attempt - 1))
        raise AssertionError

    def url(self, path: str) -> str:
        return f"{self._hub}/datasets/{self._name}/resolve/{self._info['sha']}/{quote(path)}"

    @cached_property
    def _info(self) -> dict[str, Any]:
        url = f"{self._hub}/api/datasets/{self._name}/revision/{quote(self._revision, safe='')}"
        if urlsplit(url).scheme not in {"http", "https"}:
            raise UsageError(f"HF_ENDPOINT={self._hub!r} is not an http:// or https:// URL")

        with self.open(url) as response:
            content = response.read(_MAX_INFO)
        try:
            info = orjson.loads(content)
        except orjson.JSONDecodeError as exc:
            raise UsageError(f"{url}: the answer is not JSON ({exc})") from exc
        if not isinstance(info, dict) or not re.fullmatch(r"[0-9a-f]{7,64}", str(info.get("sha"))):
            raise UsageError(f"{url}: the answer has no commit")
        return info

    @cached_property
    def _files(self) -> tuple[str, list[str]]:
        """The name of the part, `config/split` or the path of a file, and the paths of its files."""
        names = (item.get("rfilename") for item in objects_of(self._info.get("siblings")))
        paths = sorted(name for name in names if isinstance(name, str) and name.endswith(_SUFFIXES))
        parts = dict(_parts(fields_of(self._info.get("cardData")).get("configs"), paths))

        if self._part in paths:
            return self._part, [self._part]
        selected = [name for name in parts if self._part in {None, name, *name.split("/")}]
        if len(selected) == 1:
            return selected[0], parts[selected[0]]

        if not parts:
            hint = f"the hub may have converted it: hf://{self._name}@refs/convert/parquet" if self._revision == "main" else ""
            raise UsageError(f"hf://{self._name} has no Parquet, JSONL or CSV files at {self._revision}", hint=hint)

        problem = "has several splits" if self._part is None else f"has no single split {printable(self._part)!r}"
        listed = ", ".join(printable(f":{name}") for name in [*parts][:_MAX_LISTED])
        raise UsageError(f"hf://{self._name} {problem}; add one of {listed}{', …' if len(parts) > _MAX_LISTED else ''}")


def _parts(configs: Any, paths: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield `config/split` and its files, as the card of a dataset describes them; otherwise by the names of the files."""
    described = False
    for config in objects_of(configs):
        entries = config.get("data_files")
        for entry in entries if isinstance(entries, list) else [entries]:
            split, patterns = (entry.get("split"), entry.get("path")) if isinstance(entry, dict) else ("train", entry)
            patterns = [
                pattern for pattern in (patterns if isinstance(patterns, list) else [patterns]) if isinstance(pattern, str)
            ]
            if files := [path for path in paths if any(_glob(pattern).fullmatch(path) for pattern in patterns)]:
                described = True
                yield f"{config.get('config_name', 'default')}/{split}", files

    if not described:
        by_split = dict[str, list[str]]()
        for path in paths:
            names = _SPLIT.findall(path)
            by_split.setdefault(f"default/{names[-1] if names else 'train'}", []).append(path)
        yield from by_split.items()


def _glob(pattern: str) -> re.Pattern[str]:
    text = re.escape(pattern.removeprefix("./"))
    for wildcard, expression in ((r"\*\*/", "(?:.*/)?"), (r"\*\*", ".*"), (r"\*", "[^/]*"), (r"\?", "[^/]")):
        text = text.replace(wildcard, expression)
    return re.compile(text)


class _HubFile:
    """A file of a commit; it has what readers need of a path."""

    def __init__(self, cases: HubCases, path: str) -> None:
        self._cases, self._path = cases, path
        self.suffix = PurePosixPath(path).suffix

    def __str__(self) -> str:
        return self._path

    def stat(self) -> SimpleNamespace:
        with self.open("rb") as stream:
            return SimpleNamespace(st_size=stream.seek(0, os.SEEK_END))

    def open(self, _: str) -> IO[bytes]:
        return io.BufferedReader(_Ranges(self._cases, self._cases.url(self._path)), _BLOCK)


class _Ranges(io.RawIOBase):
    """The bytes of a file, requested when they are read."""

    def __init__(self, cases: HubCases, url: str) -> None:
        self._cases, self._url = cases, url
        self._position, self._size = 0, -1
        self._whole: IO[bytes] | None = None
        """The whole file, if the server does not know ranges."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END and self._size < 0:
            self._fetch(0, 1)
        self._position = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        content = self._fetch(self._position, len(buffer))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def _fetch(self, start: int, count: int) -> bytes:
        if self._whole is None and (0 <= self._size <= start or count == 0):
            return b""
        if self._whole is None:
            with self._cases.open(self._url, start, start + count - 1) as response:
                total = str(response.headers.get("Content-Range", "")).rpartition("/")[2]
                if response.status == HTTPStatus.PARTIAL_CONTENT and total.isdecimal():
                    self._size = int(total)
                    content = bytes(response.read(count))
                    if not content:
                        raise self._closed_early()
                    return content

                with ExitStack() as stack:
                    file = stack.enter_context(TemporaryFile())
                    for piece in iter(lambda: response.read(_BLOCK), b""):
                        file.write(piece)
                    if response.length:  # `read` raises no error if bytes are missing.
                        raise self._closed_early()

                    self._whole, self._size = cast("IO[bytes]", file), file.tell()
                    stack.pop_all()  # It is closed with this object.

        self._whole.seek(start)
        return self._whole.read(count)

    def _closed_early(self) -> UsageError:
        return UsageError(f"{self._url}: the connection was closed before the end of the file")

    def close(self) -> None:
        if self._whole is not None:
            self._whole.close()
        super().close()


def _hint(status: int | None) -> str:
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return "if the dataset is private or gated, accept its terms on the hub and set HF_TOKEN"
    return "check owner, name and revision" if status == HTTPStatus.NOT_FOUND else ""
