//! Standard output, which may be a pipe whose reader has left, or a file on a full disk: that ends no command halfway, and none says
//! afterwards that all is well.

use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write, stdout};
use std::process::ExitCode;
use std::sync::Mutex;

/// Why standard output takes no more.
static GONE: Mutex<Option<Error>> = Mutex::new(None);

/// As a shell says that a program ended by SIGPIPE.
const READER_LEFT: u8 = 128 + libc::SIGPIPE as u8;

/// As `println!`, which panics where it cannot write.
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::command::out::text(format_args!("{}\n", format_args!($($words)*)))
    };
}

/// Writes to standard output, unless something before could not be written.
pub fn text(words: Arguments) {
    bytes(words.to_string().as_bytes());
}

/// As `text`.
pub fn bytes(words: &[u8]) {
    let mut gone = GONE.lock().expect("nobody panics under it");
    if gone.is_none() {
        let mut out = stdout();
        *gone = out.write_all(words).and_then(|()| out.flush()).err();
    }
}

/// Whether nobody would see what is written from here on.
pub fn is_gone() -> bool {
    GONE.lock().expect("nobody panics under it").is_some()
}

/// The exit code of a command that did what it should.
pub fn ended(code: ExitCode) -> ExitCode {
    match &*GONE.lock().expect("nobody panics under it") {
        Some(e) if e.kind() == ErrorKind::BrokenPipe => READER_LEFT.into(),
        Some(e) => {
            pando_unit::say!("pando fn: the output is not whole: {e}");
            ExitCode::FAILURE
        }
        None => code,
    }
}
