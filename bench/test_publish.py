"""A section of a page is a table or a list, and the tables of figures read both."""

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
        self.assertTrue(text.endswith("![room/bench](bench/plot.svg)\n<!-- /room/bench -->"))
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
            [
                ("start", "≤ 5 ms", "–", "4.2 ms", "held"),
                ("stop", "≤ 1 ms", "2 ms", "3 ms", "missed"),
            ],
        )
        found = list(publish.goals(self.body(LONG)))
        self.assertEqual([g[4] for g in found], ["missed", "held"])
        self.assertEqual(found[1], ("seamless", "≥ 97 %", "90.4 %", "99.2 %", "held"))
        self.assertEqual(found[0][0], LONG[0].split(" | ")[0])

    def figures(self, headlines, bounds):
        """Returns the figures of two benchmarks, with these rows of both lists."""
        lists = {"headlines": headlines, "bounds": bounds}
        listed, publish.listed = publish.listed, lambda file, cells: lists[file]
        self.addCleanup(setattr, publish, "listed", listed)
        return publish.Figures({"x/a": self.body(SHORT), "y/b": self.body(LONG), "y/c": "## None"})

    def test_the_goals_are_counted_by_room(self):
        f = self.figures([], [("x/a", "stop", "2 ms: nothing stops sooner")])
        self.assertTrue(f.count().startswith("2 of 4 goals are held, 1 are missed, and 1 are out"))
        self.assertEqual(f.by_room(), "- [x](x/README.md): 1 of 2\n- [y](y/README.md): 1 of 2")

    def test_a_headline_shows_its_bound_and_no_remark(self):
        rows = [("A", "x/a", "stop", "end"), ("SNF", "y/b", LONG[0].split(" | ")[0], "p75")]
        f = self.figures(rows, [("x/a", "stop", "2 ms: nothing stops sooner")])
        self.assertIn("| end | 3 ms | ≤ 1 ms; bound 2 ms | 2 ms | out of reach |", f.table())
        self.assertIn("| p75 | 0.93 × | ≤ 0.8 × |  | **missed** |", f.table())
        self.assertNotIn("end", f.papers())
        self.assertIn("| SNF | p75 | – | 0.93 × | **missed** |", f.papers())

    def test_rows_that_no_benchmark_has_are_refused(self):
        with self.assertRaises(SystemExit):
            self.figures([("A", "x/a", "halt", "end")], []).table()
        with self.assertRaises(SystemExit):
            self.figures([], [("x/a", "start", "of a goal that is held")])

    def test_rows_without_a_verdict_are_refused(self):
        for row in ("a | b | c | d", "a | b | c | d | good", ""):
            with self.assertRaises(SystemExit):
                publish.section("room/bench", "T", [row])

    def test_the_pages_of_today_have_their_own_form(self):
        """The tables of figures are those of the sections."""
        figures = publish.Figures(publish.sections())
        self.assertIn(figures.table() + "\n<!-- /summary -->", (HERE / "README.md").read_text())
        self.assertIn(
            "<!-- figures -->\n" + figures.papers() + "\n<!-- /figures -->",
            (HERE.parent / "README.md").read_text(),
        )
        self.assertGreater(len(publish.sections()), 20)


if __name__ == "__main__":
    unittest.main()
