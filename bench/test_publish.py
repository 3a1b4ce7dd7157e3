"""A section of bench/README.md is a table or a list, and the summary reads both."""

import importlib.machinery
import importlib.util
import pathlib
import unittest

HERE = pathlib.Path(__file__).resolve().parent


def load():
    """Returns the program bench/publish as a module."""
    loader = importlib.machinery.SourceFileLoader("publish", str(HERE / "publish"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("publish", loader))
    loader.exec_module(module)
    return module


publish = load()

SHORT = ["start | ≤ 5 ms | – | 4.2 ms | held", "stop | ≤ 1 ms | 2 ms | 3 ms | missed"]
LONG = [
    "p75 against the number of units from the future demand, equal provisioning | ≤ 0.8 × |  |"
    " 0.93 × (p99 0.95 ×; of three runs, with the units' own counters) | missed",
    "a unit for each flow |  | 14 µs | 1.62 µs / 12 µs / 181 µs / 862 µs @0.00 | stated",
    "seamless | ≥ 97 % | 90.4 % | 99.2 % | held",
]


class Publish(unittest.TestCase):
    def body(self, rows):
        text = publish.section("room/bench", "Time of a start", rows)
        self.assertTrue(text.startswith("<!-- room/bench -->\n## Time of a start\n"))
        self.assertTrue(text.endswith("![room/bench](room/bench/plot.svg)\n<!-- /room/bench -->"))
        for line in text.splitlines():
            self.assertLessEqual(len(line), publish.COLUMNS, line)
        return text

    def test_rows_that_fit_are_a_table(self):
        self.assertIn("| stop | ≤ 1 ms | 2 ms | 3 ms | missed |", self.body(SHORT))

    def test_wider_rows_are_a_list(self):
        body = self.body(LONG)
        self.assertNotIn("|---", body)
        self.assertIn("- held · seamless · 99.2 % · goal ≥ 97 % · paper 90.4 %", body)
        self.assertIn("- stated · a unit for each flow · 1.62 µs", body)

    def test_goals_survive_both_forms(self):
        self.assertEqual(
            list(publish.goals(self.body(SHORT))),
            [("start", "≤ 5 ms", "4.2 ms", "held"), ("stop", "≤ 1 ms", "3 ms", "missed")],
        )
        found = list(publish.goals(self.body(LONG)))
        self.assertEqual([g[3] for g in found], ["missed", "held"])
        self.assertEqual(found[1], ("seamless", "≥ 97 %", "99.2 %", "held"))
        self.assertEqual(found[0][0], LONG[0].split(" | ")[0])

    def test_the_summary_counts_goals_by_bench(self):
        text = publish.summary({"a": self.body(SHORT), "b": self.body(LONG), "c": "## None"})
        self.assertTrue(text.startswith("2 of 4 goals are held.\n"))
        self.assertIn("**a**: 1 of 2\n\n- held · start · 4.2 ms · goal ≤ 5 ms\n", text)
        self.assertIn("**b**: 1 of 2\n", text)
        self.assertNotIn("**c**", text)
        # Remarks stay in the section.
        self.assertIn("0.93 × · goal ≤ 0.8 ×", " ".join(text.split()))
        self.assertNotIn("counters", text)

    def test_rows_without_a_verdict_are_refused(self):
        for row in ("a | b | c | d", "a | b | c | d | good", ""):
            with self.assertRaises(SystemExit):
                publish.section("room/bench", "T", [row])

    def test_the_book_of_today_has_its_own_form(self):
        """Every goal of bench/README.md is in its summary."""
        whole = (HERE / "README.md").read_text()
        found = dict(publish.re.findall(publish.SECTION, whole))
        summary = found.pop("summary")
        self.assertEqual(publish.summary(found), summary)
        self.assertGreater(len(found), 20)


if __name__ == "__main__":
    unittest.main()
