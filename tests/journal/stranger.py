"""A second reader of a journal, written by a stranger from docs/format.md alone.

It shows that the page suffices, and it checks the package from outside. It must stay independent of the package: it imports
nothing but Python's standard library, and where it and the package disagree, the page decides.
"""

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any


def _agree(found: dict[str, Any], **wanted: object) -> None:
    """Refuse what was found unless these members have these values; a member that is left out counts as 0 or as empty."""
    if wrong := [member for member, value in wanted.items() if (found.get(member) or None) != (value or None)]:
        raise ValueError(f"not as it must be: {', '.join(wrong)}")


def read(directory: Path) -> list[dict[str, Any]]:
    """Read the run in `directory`, check every line of it, and give its records in order, large values put back in place.

    Half a line at the end of the last file is left out, for it may still be being written, unless it is the file's first or
    stands behind a seal. A `ValueError` names the file and the line of the first thing that is not as the page says; where
    a file lacks its seal, that is the first line of the file after it. Members that have their default stay left out. Types
    that the page does not name are given like all others: to refuse or to skip them is for whoever makes sense of them. That
    a blob's name is a SHA-256 in lower case needs no look of its own: it has to equal the one of the bytes read.
    """
    last = max((int(f.name[8:-6]) for f in directory.iterdir() if re.fullmatch(r"journal-[0-9]{6,}\.jsonl", f.name)), default=1)
    records, run, h, data, sealed, n, at = list[dict[str, Any]](), "", "", b"", True, 1, 0
    try:
        for n in range(1, last + 1):
            at, seq, was, end, sha = 0, len(records), h, len(data), data and sha256(data).hexdigest()
            for at, row in enumerate(re.finditer(rb"^.*\n?|.*\n", data := (directory / f"journal-{n:06d}.jsonl").read_bytes())):
                records.append(record := json.loads(row[0]))
                h = sha256(f"{(run := run or record['run'])}{h or '0' * 32}".encode() + row[0][:-41]).hexdigest()[:32]
                start, found = row.start(), record | {"end": row[0][-41:], "left": len(data) - row.end(), "after_seal": sealed}
                _agree(found, seq=len(records), end=f',"h":"{h}"}}\n'.encode(), after_seal=at == 0)
                if at == 0:
                    _agree(record | {"major": record["version"][:2]}, type="segment_opened", format="evaljournal", major="1.")
                    _agree(found, run=run, segment=n, previous_seq=seq, previous_h=was, previous_bytes=end, previous_sha256=sha)
                if sealed := record["type"] == "segment_sealed":
                    _agree(found, run=run, segment=n, records=at, bytes=start, sha256=sha256(data[:start]).hexdigest(), left=0)
                for key, ref in record.pop("blobs", {}).items():
                    record[key] = json.loads(raw := (directory / f"blobs/{ref['sha256']:.2}/{ref['sha256']}.json").read_bytes())
                    _agree(ref, sha256=sha256(raw).hexdigest(), bytes=len(raw))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"journal-{n:06d}.jsonl, line {at + 1}: {error}") from error
    return records
