"""Runs pytest for so long at most. usage: run_tests.py SECONDS RESULT.xml ARGUMENT...

The result has a name for each test that this program takes as an argument, too. RESULT.xml.last is
the test that began last: the one at fault where the process ends before its time.
"""

import importlib.util
import os
import sys
import time

import pytest

TEST_S = 90


class Bound:
    def __init__(self, seconds, path):
        self.end, self.path, self.names = time.monotonic() + seconds, path, {}

    def pytest_collection_modifyitems(self, items):
        for item in items:
            # Node ids are of a root that differs with the arguments.
            file = os.path.relpath(item.path)
            file = str(item.path) if file.startswith("..") else file
            _, colons, rest = item.nodeid.partition("::")
            self.names[item.nodeid] = file + colons + rest
            item.user_properties.append(("name", self.names[item.nodeid]))

    def pytest_runtest_logstart(self, nodeid):
        with open(f"{self.path}.last", "w", encoding="utf-8") as file:
            file.write(self.names.get(nodeid, nodeid))

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logfinish(self):
        if time.monotonic() > self.end:
            self.session.shouldstop = "time is over"

    def pytest_sessionstart(self, session):
        self.session = session


if __name__ == "__main__":
    options = ["-q", "-o", f"cache_dir={sys.argv[2]}.cache", "-o", "junit_family=xunit1",
               "--tb=line", f"--junitxml={sys.argv[2]}"]
    if importlib.util.find_spec("pytest_timeout"):
        options.append(f"--timeout={TEST_S}")
    bound = Bound(float(sys.argv[1]), sys.argv[2])
    sys.exit(pytest.main([*options, *sys.argv[3:]], plugins=[bound]))
