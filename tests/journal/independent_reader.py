"""A second reader of a journal, written from docs/format.md alone.

It shows that the page is complete. It must stay independent of the package and imports only the standard library; where it and
the package disagree, the page decides.
"""

import json
import re
from hashlib import sha256
from pathlib import Path
from typing import Any


def _check(actual: dict[str, Any], **expected: object) -> None:
    """Raise `ValueError` unless these fields have these values; a missing field counts as 0 or empty."""
    if invalid := [field for field, value in expected.items() if (actual.get(field) or None) != (value or None)]:
        raise ValueError(f"invalid: {', '.join(invalid)}")


def read(directory: Path) -> list[dict[str, Any]]:
    """Read and check the run in `directory`; return its records in order, with the values of blobs.

    An incomplete last line is ignored, unless it is the first of its file or follows a seal. A `ValueError` names the file and
    line of the first error; for a missing seal that is the first line of the next file. Defaults are not filled in, and unknown
    types are returned like the others.
    """
    last = max((int(f.name[8:-6]) for f in directory.iterdir() if re.fullmatch(r"journal-[0-9]{6,}\.jsonl", f.name)), default=1)
    records, run, h, data, sealed, n, i = list[dict[str, Any]](), "", "", b"", True, 1, 0
    try:
        for n in range(1, last + 1):
            i, seq, last_h, end, sha = 0, len(records), h, len(data), data and sha256(data).hexdigest()
            for i, row in enumerate(re.finditer(rb"^.*\n?|.*\n", data := (directory / f"journal-{n:06d}.jsonl").read_bytes())):
                records.append(record := json.loads(row[0]))
                h = sha256(f"{(run := run or record['run'])}{h or '0' * 32}".encode() + row[0][:-41]).hexdigest()[:32]
                start, actual = row.start(), record | {"end": row[0][-41:], "left": len(data) - row.end(), "after_seal": sealed}
                _check(actual, seq=len(records), end=f',"h":"{h}"}}\n'.encode(), after_seal=i == 0)
                if i == 0:
                    _check(record | {"major": record["version"][:2]}, type="segment_opened", format="evaljournal", major="2.")
                    _check(
                        actual, run=run, segment=n, previous_seq=seq, previous_h=last_h, previous_bytes=end, previous_sha256=sha
                    )
                if sealed := record["type"] == "segment_sealed":
                    _check(actual, run=run, segment=n, records=i, bytes=start, sha256=sha256(data[:start]).hexdigest(), left=0)
                for key, ref in record.pop("blobs", {}).items():
                    record[key] = json.loads(raw := (directory / f"blobs/{ref['sha256']:.2}/{ref['sha256']}.json").read_bytes())
                    _check(ref, sha256=sha256(raw).hexdigest(), bytes=len(raw))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"journal-{n:06d}.jsonl, line {i + 1}: {error}") from error
    return records
