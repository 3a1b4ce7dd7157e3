"""Runs a module of CPython's regression tests: run.py MODULE. It prints each test that does not
pass, and the number of those that do."""
import sys
import unittest
from test import support

support.use_resources = ["subprocess", "cpu"]
support.verbose = 0
module = sys.argv[1]
out = sys.stdout
passed = 0


class Result(unittest.TestResult):
    def addSuccess(self, test):
        global passed
        passed += 1

    def say(self, test, result):
        name = test.id() if hasattr(test, "id") else str(test)
        out.write(f"python/{module}/{name.removeprefix('test.')}\t{result}\n")
        out.flush()

    def addError(self, test, err):
        self.say(test, f"error {err[0].__name__}")

    def addFailure(self, test, err):
        self.say(test, "failure")

    def addSkip(self, test, reason):
        self.say(test, "skipped")

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.say(test, "failure of a part")


if __name__ == "__main__":
    try:
        suite = unittest.defaultTestLoader.loadTestsFromName(f"test.{module}")
        suite.run(Result())
    except unittest.SkipTest:
        out.write(f"python/{module}\tskipped as a whole\n")
    out.write(f"python/{module}/all\t{passed} right\n")
    out.flush()
