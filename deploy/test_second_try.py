"""Only a few failed tests get a second try, and no grave failure does."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent

# A stand-in for go and cargo: it notes its arguments, prints a file and ends with a code.
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >>"$NOTED"
cat "$PRINTED"
exit "$CODE"
"""


def event(action, test="", output=None, package="room/a"):
    e = {"Action": action, "Package": package}
    if test:
        e["Test"] = test
    if output is not None:
        e["Output"] = output
    return json.dumps(e, separators=(",", ":")) + "\n"


def cargo(*failed, program="-p room --test a", why=""):
    """Prints the end of a failed test program as cargo test does."""
    listed = "".join(f"    {test}\n" for test in failed)
    return (
        f"running 9 tests\n\nfailures:\n\n---- {failed[:1]} stdout ----\n"
        f"panicked at a.rs:1\n{why}\n"
        f"\nfailures:\n{listed}\ntest result: FAILED. 8 passed; 1 failed\n\n"
        f"error: test failed, to rerun pass `{program}`\n"
    )


class SecondTry(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for program in ("go", "cargo"):
            (self.folder / program).write_text(STAND_IN)
            (self.folder / program).chmod(0o755)

    def run_it(self, language, first, second="", code=0, flags=()):
        """Returns whether the run passes at last; the files hold the rest."""
        for name, text in (("first", first), ("second", second), ("noted", ""), ("named", "")):
            (self.folder / name).write_text(text)
        env = dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}", CODE=str(code))
        env.update(NOTED=str(self.folder / "noted"), PRINTED=str(self.folder / "second"))
        command = [HERE / "second-try", language, self.folder / "named", self.folder / "first"]
        run = subprocess.run([*command, *flags], env=env, capture_output=True, text=True)
        self.said = run.stdout
        self.assertEqual(run.stderr, "")
        return run.returncode == 0

    def read(self, name):
        return (self.folder / name).read_text()

    def refused(self, language, first, why):
        self.assertFalse(self.run_it(language, first))
        self.assertIn(why, self.said)
        self.assertEqual((self.read("noted"), self.read("named")), ("", ""))
        self.assertEqual(self.read("first"), first)

    def test_failed_top_level_tests_run_again_alone(self):
        first = (
            event("pass", "TestC")
            + event("fail", "TestA/one")
            + event("fail", "TestA")
            + event("fail", "TestB")
            + event("fail")
        )
        second = event("pass", "TestA/one") + event("pass", "TestA") + event("pass", "TestB")
        self.assertTrue(self.run_it("go", first, second, flags=("-race", "./...", "-run=X")))
        self.assertEqual(
            self.read("noted"),
            "go test -json -p 1 -count 1 -run ^(TestA|TestB)$ -race room/a\n",
        )
        self.assertEqual(
            self.read("named").splitlines(),
            [
                "passed at the second try: room/a TestA (first failure above)",
                "passed at the second try: room/a TestB (first failure above)",
            ],
        )
        self.assertEqual(self.read("first"), event("pass", "TestC") + second)

    def test_each_package_runs_for_itself(self):
        first = event("fail", "TestA") + event("fail", "TestB", package="room/b")
        self.run_it("go", first, event("pass", "TestA"))
        self.assertEqual([line.split()[-1] for line in self.read("noted").splitlines()],
                         ["room/a", "room/b"])

    def test_a_test_that_fails_twice_fails(self):
        first = event("fail", "TestA") + event("fail")
        second = event("output", "TestA", "a.go:1: wrong again\n") + event("fail", "TestA")
        self.assertFalse(self.run_it("go", first, second, code=1))
        self.assertIn("wrong again", self.said)
        self.assertEqual((self.read("named"), self.read("first")), ("", first))

    def test_a_test_that_did_not_run_did_not_pass(self):
        first = event("fail", "TestA")
        for second in ("", event("skip", "TestA"), event("pass", "TestB")):
            self.assertFalse(self.run_it("go", first, second))
            self.assertEqual(self.read("named"), "")

    def test_six_failures_are_real(self):
        first = "".join(event("fail", f"Test{n}") for n in range(6))
        self.refused("go", first, "6 tests failed, more than 5")
        self.assertTrue(
            self.run_it("go", first.splitlines(True)[0] * 9, event("pass", "Test0")),
            "one test that failed nine times is one test",
        )

    def test_a_build_that_fails_is_real(self):
        first = '{"ImportPath":"room/a","Action":"build-fail"}\n' + event("fail", "TestA")
        self.refused("go", first, "the build of room/a failed")

    def test_races_and_panics_are_real(self):
        for output in (
            "panic: test timed out after 10m0s\n",
            "fatal error: concurrent map writes\n",
            "WARNING: DATA RACE\n",
            "    testing.go:1617: race detected during execution of test\n",
        ):
            first = event("output", "TestA", output) + event("fail", "TestA") + event("fail")
            self.refused("go", first, output.strip())

    def test_a_word_in_an_output_is_no_panic(self):
        first = event("output", "TestA", "    a.go:3: panic: no\n") + event("fail", "TestA")
        self.assertTrue(self.run_it("go", first, event("pass", "TestA")))

    def test_a_package_that_fails_without_a_test_is_real(self):
        self.refused("go", event("pass", "TestA") + event("fail"), "outside of its tests")
        self.refused("go", event("pass", "TestA"), "none of its tests did")
        mixed = event("fail", "TestA") + event("fail", package="room/b")
        self.refused("go", mixed, "room/b failed outside")

    def test_lines_of_the_compiler_are_no_events(self):
        first = "# room/a\n" + event("fail", "TestA")
        self.assertTrue(self.run_it("go", first, event("pass", "TestA")))

    def test_failed_rust_tests_run_again_alone(self):
        first = cargo("dies::once", "dies::twice") + "error: 1 target failed:\n    `-p room`\n"
        flags = ("--locked", "--release", "--workspace", "--exclude", "other")
        self.assertTrue(self.run_it("cargo", first, "test result: ok. 2 passed; 0", flags=flags))
        self.assertEqual(
            self.read("noted"),
            "cargo test --locked --release -p room --test a -- --exact dies::once dies::twice "
            "--test-threads 1\n",
        )
        self.assertIn("second try: -p room --test a dies::twice (first", self.read("named"))

    def test_every_rust_program_is_found(self):
        first = cargo("a") + cargo("b", program="-p other --lib")
        self.assertTrue(self.run_it("cargo", first, "test result: ok. 1 passed; 0"))
        self.assertEqual(self.read("noted").count("\n"), 2)

    def test_a_rust_test_that_fails_twice_or_vanishes_fails(self):
        self.assertFalse(self.run_it("cargo", cargo("a"), "1 passed; 1 failed", code=101))
        self.assertFalse(self.run_it("cargo", cargo("a"), "test result: ok. 0 passed; 0"))
        self.assertEqual(self.read("named"), "")

    def test_grave_failures_of_rust_are_real(self):
        self.refused("cargo", "error[E0308]: mismatched types\n", "E0308")
        self.refused("cargo", "error: could not compile `room`\n", "could not compile")
        crashed = "running 9 tests\nerror: test failed, to rerun pass `-p room --lib`\n"
        self.refused("cargo", crashed, "outside of its tests")
        self.refused("cargo", cargo(*"abcdef"), "6 tests failed")
        self.refused("cargo", cargo("src/lib.rs", program="-p room --doc"), "--doc failed outside")

    def test_one_program_that_crashed_beside_a_failed_test_is_real(self):
        crashed = "running 1 test\nerror: test failed, to rerun pass `-p other --lib`\n"
        self.refused("cargo", cargo("a") + crashed, "-p other --lib failed outside")

    def test_a_skip_of_a_rust_test_is_counted(self):
        """deploy/test counts each test that printed a skip, although cargo calls it passed."""
        script = (HERE / "test").read_text()
        body = script[script.index("cargo_test() {"):]
        body = body[: body.index("\n}\n") + 3]
        printed = "skipped: no root\nskipped: no redis-server\nskipped: no root\n"
        for said, want in ((printed, 3), ("test result: ok. 9 passed; 0 failed\n", 0)):
            (self.folder / "second").write_text(said)
            env = dict(os.environ, PATH=f"{self.folder}:{os.environ['PATH']}", CODE="0")
            env.update(NOTED=str(self.folder / "noted"), PRINTED=str(self.folder / "second"))
            run = subprocess.run(
                ["bash", "-c", f"rust_skipped=0\n{body}\ncargo_test -p room >/dev/null\n"
                 "echo $rust_skipped"],
                env=env, capture_output=True, text=True,
            )
            self.assertEqual((run.stdout.strip(), run.stderr), (str(want), ""))
        self.assertIn('"$skipped" = 0', script)  # the last line of deploy/test fails in CI


if __name__ == "__main__":
    unittest.main()
