"""Measurements that the hypervisor disturbed are repeated, up to a time limit."""

import contextlib
import io
import pathlib
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import steal  # noqa: E402


class Undisturbed(unittest.TestCase):
    def measured(self, *stolen, patience=1000):
        """Runs measurements of 100 ticks with the given stolen ticks; returns result and output."""
        spent, found, said = [[0, 0]], [], io.StringIO()

        def measure():
            spent[0] = [spent[0][0] + 100, spent[0][1] + stolen[len(found)]]
            found.append(len(found))
            return found[-1]

        given = {"ticks": lambda: tuple(spent[0]), "PAUSE": 0, "PATIENCE": patience}
        with mock.patch.multiple(steal, **given), contextlib.redirect_stderr(said):
            return steal.undisturbed(measure), said.getvalue()

    def test_what_was_left_to_us_is_taken(self):
        self.assertEqual(self.measured(4), (0, ""))

    def test_what_was_disturbed_is_measured_again(self):
        result, said = self.measured(5, 100, 0)
        self.assertEqual(result, 2)
        self.assertEqual(
            [line.split(": ")[1][:4].strip(" o") for line in said.splitlines()], ["5%", "100%"]
        )

    def test_but_not_for_ever(self):
        with self.assertRaisesRegex(SystemExit, "^the hypervisor takes more than 4%"):
            self.measured(5, patience=-1)

    def test_ticks_are_of_all_processors(self):
        every, stolen = steal.ticks()
        self.assertTrue(0 <= stolen < every)


if __name__ == "__main__":
    unittest.main()
