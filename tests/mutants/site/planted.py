"""A plugin of pytest: tests in the order of a list, and how long each took.

EGGROLL_ORDER is a JSON file with names of tests and the whole seconds after which SIGALRM ends the
process in the midst of one; tests that it lacks come last. EGGROLL_SECONDS is the JSON file that
tells, before every test and at the end, the seconds of each so far, which failed, and which begins.
"""

import json
import os
import signal
from collections import Counter
from pathlib import Path

ORDER, SECONDS = os.environ.get("EGGROLL_ORDER"), os.environ.get("EGGROLL_SECONDS")
LIMITS = json.loads(Path(ORDER).read_text()) if ORDER else {}
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
        place = {name: i for i, name in enumerate(LIMITS)}
        items.sort(key=lambda item: place.get(item.nodeid, len(place)))


def pytest_runtest_logstart(nodeid):
    tell(nodeid)
    signal.alarm(LIMITS.get(nodeid, 0))  # in C++ as well, as nothing handles it


def pytest_runtest_logfinish():
    signal.alarm(0)


def pytest_runtest_logreport(report):
    seconds[report.nodeid] += report.duration
    if report.failed:
        failed.append(report.nodeid)


def pytest_sessionfinish():
    tell("")
