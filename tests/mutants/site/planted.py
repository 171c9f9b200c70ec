"""A plugin of pytest: tests in the order of a list, and how long each took.

EGGROLL_ORDER is a JSON file with names of tests and the whole seconds after which SIGALRM ends the
process in the midst of one; tests that it lacks come last, or not at all with EGGROLL_ONLY.
EGGROLL_SECONDS is the JSON file that tells, before every test and at the end, the seconds of each
so far, which failed, and which begins. EGGROLL_COUNTED is a folder that takes what the kernels
count of every test, where they are built so.
"""

import ctypes
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

ORDER, SECONDS = os.environ.get("EGGROLL_ORDER"), os.environ.get("EGGROLL_SECONDS")
COUNTED = os.environ.get("EGGROLL_COUNTED")
LIMITS = json.loads(Path(ORDER).read_text()) if ORDER else {}
OWNER = os.getpid()
seconds, failed, names = Counter(), [], []


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
        if "EGGROLL_ONLY" in os.environ:
            items[:] = [i for i in items if {i.nodeid, i.nodeid.partition("::")[0]} & place.keys()]


def kernels(name):
    """Calls a function of the library that counts, if it is loaded."""
    module = sys.modules.get("eggroll._int8_gemm")
    if COUNTED and module:
        getattr(ctypes.CDLL(module.__file__), name)()


def pytest_runtest_logstart(nodeid):
    tell(nodeid)
    if COUNTED:
        os.environ["GCOV_PREFIX"] = f"{COUNTED}/{len(names)}"  # child processes write there as well
        names.append(nodeid)
        kernels("eggroll_reset")
    signal.alarm(LIMITS.get(nodeid, 0))  # in C++ as well, as nothing handles it


def pytest_runtest_logfinish():
    signal.alarm(0)
    kernels("eggroll_dump")


def pytest_runtest_logreport(report):
    seconds[report.nodeid] += report.duration
    if report.failed:
        failed.append(report.nodeid)


def pytest_sessionfinish():
    tell("")
    if COUNTED and os.getpid() == OWNER:
        Path(COUNTED, "names").write_text("\n".join(names))
