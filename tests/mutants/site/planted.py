"""A plugin of pytest: tests in the order of a list, and how long each took.

EGGROLL_ORDER is a JSON file with names of tests; those that it lacks come last. EGGROLL_SECONDS is
the JSON file that tells, at the end, the seconds of each test and which failed.
"""

import json
import os
from collections import Counter
from pathlib import Path

ORDER, SECONDS = os.environ.get("EGGROLL_ORDER"), os.environ.get("EGGROLL_SECONDS")
seconds, failed = Counter(), []


def pytest_collection_modifyitems(items):
    if ORDER:
        place = {name: i for i, name in enumerate(json.loads(Path(ORDER).read_text()))}
        items.sort(key=lambda item: place.get(item.nodeid, len(place)))


def pytest_runtest_logreport(report):
    seconds[report.nodeid] += report.duration
    if report.failed:
        failed.append(report.nodeid)


def pytest_sessionfinish():
    if SECONDS:
        Path(SECONDS).write_text(json.dumps({"seconds": seconds, "failed": failed}))
