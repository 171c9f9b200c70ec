"""A plugin of pytest: tests in the order of a list, and how long each took.

EGGROLL_ORDER is a JSON file with names of tests; those that it lacks come last. EGGROLL_SECONDS is
the JSON file that tells, before every test and at the end, the seconds of each test so far, which
failed, and which begins.
"""

import json
import os
from collections import Counter
from pathlib import Path

ORDER, SECONDS = os.environ.get("EGGROLL_ORDER"), os.environ.get("EGGROLL_SECONDS")
OWNER = os.getpid()
seconds, failed = Counter(), []


def tell(now):
    """Writes the file whole or not at all: what runs may be killed."""
    if SECONDS and os.getpid() == OWNER:
        partial = Path(f"{SECONDS}.partial")
        partial.write_text(json.dumps({"seconds": seconds, "failed": failed, "now": now}))
        partial.replace(SECONDS)


def pytest_collection_modifyitems(items):
    if ORDER:
        place = {name: i for i, name in enumerate(json.loads(Path(ORDER).read_text()))}
        items.sort(key=lambda item: place.get(item.nodeid, len(place)))


def pytest_runtest_logstart(nodeid):
    tell(nodeid)


def pytest_runtest_logreport(report):
    seconds[report.nodeid] += report.duration
    if report.failed:
        failed.append(report.nodeid)


def pytest_sessionfinish():
    tell("")
