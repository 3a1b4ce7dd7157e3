"""A benchmark refuses data that is not the data of its figures."""

import hashlib
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import pins  # noqa: E402


class Pinned(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.here = self.folder / "pins"
        self.here.mkdir()
        for name in ("a.pcap", "b.pcapng"):
            (self.folder / name).write_text(name)
        (self.folder / "README").write_text("not a capture")
        lines = [f"{hashlib.sha256(n.encode()).hexdigest()}  {n}\n" for n in ("a.pcap", "b.pcapng")]
        (self.here / "captures.sha256").write_text("".join(lines))

    def captures(self):
        named = mock.patch.dict("os.environ", CAPTURES=str(self.folder))
        with mock.patch.object(pins, "HERE", self.here), named:
            return pins.captures()

    def test_the_same_data_is_taken(self):
        self.assertEqual(self.captures(), self.folder)

    def test_other_bytes_are_refused(self):
        (self.folder / "a.pcap").write_text("other")
        with self.assertRaisesRegex(SystemExit, "a.pcap has other bytes"):
            self.captures()

    def test_a_missing_capture_is_refused(self):
        (self.folder / "a.pcap").unlink()
        with self.assertRaisesRegex(SystemExit, "a.pcap is missing"):
            self.captures()

    def test_one_more_capture_is_refused(self):
        (self.folder / "c.pcap").write_text("more")
        with self.assertRaisesRegex(SystemExit, "c.pcap is not in captures.sha256"):
            self.captures()

    def test_no_folder_is_an_error(self):
        with mock.patch.dict("os.environ", CAPTURES=""):
            with self.assertRaisesRegex(SystemExit, "set CAPTURES"):
                pins.captures()


if __name__ == "__main__":
    unittest.main()
