"""A journalctl of ours: entries come from the file in ENTRIES; it follows, seeks, and fails as told.

`ENTRIES.fail` holds what it complains about before it exits with 1; it ends when the file goes away.
"""

import json
import os
import sys
import time
from pathlib import Path

entries = Path(os.environ["ENTRIES"])
failure = entries.with_suffix(".fail")
if failure.exists():
    print(failure.read_text(), file=sys.stderr)
    sys.exit(1)
follow = "--follow" in sys.argv
after = next((a.partition("=")[2] for a in sys.argv if a.startswith("--after-cursor=")), "")


def cursor(line: bytes) -> str:
    try:
        return str(json.loads(line).get("__CURSOR", ""))
    except ValueError:
        return ""


if after and all(cursor(line) != after for line in entries.read_bytes().splitlines()):
    print("Failed to seek to cursor: Invalid argument", file=sys.stderr)
    sys.exit(1)
with entries.open("rb") as file:
    waiting = after
    while entries.exists():
        line = file.readline()
        if not line:
            if not follow:
                break
            time.sleep(0.005)
            continue
        if waiting:
            waiting = "" if cursor(line) == waiting else waiting
            continue
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
