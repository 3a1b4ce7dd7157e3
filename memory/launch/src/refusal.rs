//! The reason why a command did nothing, and its exit code for scripts. The codes are those of
//! `pando`.

use std::io::ErrorKind;

/// A cause with the next step, and its exit code.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal {
    pub code: i32,
    pub words: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(&self.words)
    }
}

impl std::error::Error for Refusal {}

/// An argument is invalid.
pub fn invalid(words: impl Into<String>) -> Refusal {
    Refusal { code: 3, words: words.into() }
}

/// The file or program does not exist.
pub fn not_found(words: impl Into<String>) -> Refusal {
    Refusal { code: 4, words: words.into() }
}

/// A memory host refuses, or the memory of this machine is too small.
pub fn refused(words: impl Into<String>) -> Refusal {
    Refusal { code: 5, words: words.into() }
}

/// The memory host does not run.
pub fn away(words: impl Into<String>) -> Refusal {
    Refusal { code: 8, words: words.into() }
}

/// The user lacks a right on this machine.
pub fn denied(words: impl Into<String>) -> Refusal {
    Refusal { code: 10, words: words.into() }
}

/// This kind of program cannot run on far memory.
pub fn unsupported(words: impl Into<String>) -> Refusal {
    Refusal { code: 11, words: words.into() }
}

/// Classifies an error of the system.
pub fn of(e: &std::io::Error, words: impl Into<String>) -> Refusal {
    let code = match e.kind() {
        ErrorKind::NotFound => 4,
        ErrorKind::AddrInUse => 6,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => 10,
        ErrorKind::IsADirectory
        | ErrorKind::NotADirectory
        | ErrorKind::AddrNotAvailable
        | ErrorKind::InvalidData => 3,
        _ => 1,
    };
    Refusal { code, words: words.into() }
}
