//! Standard output. It may be a pipe without a reader or a file on a full disk. Neither stops a
//! command halfway, and the exit code then reports a failure.

use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write, stdout};
use std::process::ExitCode;
use std::sync::Mutex;

/// The error that ended standard output.
static GONE: Mutex<Option<Error>> = Mutex::new(None);

/// A shell's exit code for a program ended by SIGPIPE.
const READER_LEFT: u8 = 128 + libc::SIGPIPE as u8;

/// Like `println!`, which panics if it cannot write.
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::command::out::text(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// Writes to standard output, unless an earlier write failed.
pub fn text(words: Arguments) {
    bytes(words.to_string().as_bytes());
}

/// Like `text`.
pub fn bytes(words: &[u8]) {
    let mut gone = GONE.lock().expect("no holder panics");
    if gone.is_none() {
        let mut out = stdout();
        *gone = out.write_all(words).and_then(|()| out.flush()).err();
    }
}

/// Reports whether standard output is gone.
pub fn is_gone() -> bool {
    GONE.lock().expect("no holder panics").is_some()
}

/// Returns the exit code of a successful command: a failure if its output is incomplete.
pub fn ended(code: ExitCode) -> ExitCode {
    match &*GONE.lock().expect("no holder panics") {
        Some(e) if e.kind() == ErrorKind::BrokenPipe => READER_LEFT.into(),
        Some(e) => {
            pando_walls::say!("pando fn: the output is incomplete: {e}");
            ExitCode::FAILURE
        }
        None => code,
    }
}

/// The format of results.
#[derive(Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Prints a result for programs.
pub fn print_json(value: &impl serde::Serialize) {
    tell!("{}", serde_json::to_string_pretty(value).expect("it is JSON"));
}
