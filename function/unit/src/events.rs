//! The log of a unit: events and printed text of functions, one JSON line each. The sender of a
//! packet can cause a line, so a second and the file have bounds.

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd};

/// The most bytes of lines in a second. Further ones are counted.
const SECOND_MAX_BYTES: usize = 1 << 20;

/// The most bytes of a log file. It then begins again: the file lies in memory.
const FILE_MAX_BYTES: u64 = 16 << 20;

/// Bounds the lines of a unit.
#[derive(Debug, Default)]
pub struct Events {
    second: u64,
    bytes: usize,
    suppressed: u64,
    lines: String,
}

impl Events {
    /// Adds a line that comes at `now_ns`, or counts it as suppressed.
    pub fn add(&mut self, now_ns: u64, line: &serde_json::Value) {
        self.turn(now_ns);
        let line = format!("{line}\n");
        if self.bytes + line.len() > SECOND_MAX_BYTES {
            self.suppressed += 1;
            return;
        }
        self.bytes += line.len();
        self.lines += &line;
    }

    /// Begins a second, with the number of lines that the former one lacked.
    fn turn(&mut self, now_ns: u64) {
        let second = now_ns / 1_000_000_000;
        if second == self.second {
            return;
        }
        (self.second, self.bytes) = (second, 0);
        match std::mem::take(&mut self.suppressed) {
            0 => {}
            n => self.lines += &format!("{}\n", serde_json::json!({ "suppressed": n })),
        }
    }

    /// Writes the lines to the standard error output.
    pub fn write(&mut self, now_ns: u64) {
        if self.suppressed > 0 {
            self.turn(now_ns);
        }
        if self.lines.is_empty() {
            return;
        }
        // SAFETY: the descriptor stays open: the file is never dropped.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(io::stderr().as_raw_fd()) });
        begin_again(&file, FILE_MAX_BYTES);
        let _ = (&*file).write_all(self.lines.as_bytes());
        self.lines.clear();
    }
}

/// Empties a log file that is too long. Its writers append, so they continue at its start. The
/// walls of a unit allow these two calls, the second on the standard error output only.
fn begin_again(file: &File, most: u64) {
    // SAFETY: a zeroed stat is valid, and lives during the call.
    let mut is: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: as above; the descriptor is open.
    let known = unsafe { libc::fstat(file.as_raw_fd(), &mut is) } == 0;
    let bytes = is.st_size as u64;
    if !known || is.st_mode & libc::S_IFMT != libc::S_IFREG || bytes <= most {
        return;
    }
    // SAFETY: it takes numbers only.
    if unsafe { libc::ftruncate(file.as_raw_fd(), 0) } == 0 {
        let line = serde_json::json!({ "log": "begun again", "bytes": bytes });
        let _ = { file }.write_all(format!("{line}\n").as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_a_bound_and_the_next_one_counts_the_others() {
        let mut events = Events::default();
        let line = serde_json::json!({ "event": "x".repeat(1000) });
        for n in 0..2000u64 {
            events.add(n, &line);
        }
        assert!(events.lines.len() <= SECOND_MAX_BYTES, "{} bytes", events.lines.len());
        let written = events.lines.lines().count() as u64;
        events.lines.clear();
        events.add(1_000_000_000, &line);
        let first = events.lines.lines().next().unwrap();
        assert_eq!(first, format!("{{\"suppressed\":{}}}", 2000 - written));
        assert_eq!(events.lines.lines().count(), 2);
    }

    #[test]
    fn a_log_that_is_too_long_begins_again() {
        let path = std::env::temp_dir().join(format!("pando-log-{}", std::process::id()));
        let file = File::options().create(true).append(true).read(true).open(&path).unwrap();
        (&file).write_all(&[b'x'; 100]).unwrap();
        begin_again(&file, 100);
        assert_eq!(file.metadata().unwrap().len(), 100, "it has its bound");
        begin_again(&file, 99);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "{\"bytes\":100,\"log\":\"begun again\"}\n");
    }
}
