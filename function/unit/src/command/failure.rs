//! The errors of commands, with their exit codes.

use std::io::{Error, ErrorKind};
use std::path::Path;

use pando_traffic::pcap::PcapError;
use pando_wasm::ModuleError;

/// The errors of commands; the exit codes are those of `pando`.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// An operation failed that should work.
    #[error("{0}")]
    Internal(String),
    /// The input is invalid.
    #[error("{0}")]
    Invalid(String),
    /// There is no such unit, device or file.
    #[error("{0}")]
    NotFound(String),
    /// An existing object is in the way.
    #[error("{0}")]
    Conflict(String),
    /// The user lacks the permission.
    #[error("{0}")]
    Denied(String),
}

impl Failure {
    /// Returns the exit code.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Internal(_) => 1,
            Failure::Invalid(_) => 3,
            Failure::NotFound(_) => 4,
            Failure::Conflict(_) => 6,
            Failure::Denied(_) => 10,
        }
    }

    /// Returns the error of another process of this program, from its exit code and its message.
    pub fn from_code(code: Option<i32>, words: String) -> Failure {
        match code {
            Some(3) => Failure::Invalid(words),
            Some(4) => Failure::NotFound(words),
            Some(6) => Failure::Conflict(words),
            Some(10) => Failure::Denied(words),
            _ => Failure::Internal(words),
        }
    }

    /// Returns the error of reading or writing a file that the user named.
    pub fn of_file(doing: &str, file: &Path, e: &Error) -> Failure {
        let mut words = format!("{doing} {}: {e}", file.display());
        // Writing to a file fails with NotFound only if its folder is missing.
        if let (ErrorKind::NotFound, "write", Some(folder)) = (e.kind(), doing, file.parent()) {
            words += &format!(": `mkdir -p {}` makes its folder", folder.display());
        }
        if (e.kind(), doing) == (ErrorKind::PermissionDenied, "remove") {
            words += ": run it as root";
        }
        match e.kind() {
            ErrorKind::NotFound => Failure::NotFound(words),
            ErrorKind::AlreadyExists => Failure::Conflict(words),
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Failure::Denied(words),
            ErrorKind::IsADirectory | ErrorKind::NotADirectory => Failure::Invalid(words),
            _ => Failure::Internal(words),
        }
    }

    /// Returns the error of opening a device.
    pub fn of_device(device: &str, e: &Error) -> Failure {
        match e.kind() {
            ErrorKind::NotFound => Failure::NotFound(e.to_string()),
            ErrorKind::PermissionDenied => Failure::Denied(format!(
                "{device}: {e}: packet sockets need CAP_NET_RAW; run it as root"
            )),
            ErrorKind::Unsupported => Failure::Invalid(format!(
                "{device} cannot do AF_XDP: {e}; --port packet goes without"
            )),
            ErrorKind::ResourceBusy => {
                Failure::Conflict(format!("{device}: {e}; --port packet goes without"))
            }
            _ => Failure::Internal(format!("{device}: {e}")),
        }
    }
}

impl From<ModuleError> for Failure {
    fn from(e: ModuleError) -> Self {
        match &e {
            ModuleError::Read { source, .. } if source.kind() == ErrorKind::NotFound => {
                Failure::NotFound(format!("{e}: `pando fn build DIR` makes DIR/DIR.wasm"))
            }
            _ => Failure::Invalid(e.to_string()),
        }
    }
}

impl From<PcapError> for Failure {
    fn from(e: PcapError) -> Self {
        match &e {
            PcapError::Read { source, .. } if source.kind() == ErrorKind::NotFound => {
                Failure::NotFound(format!("{e}: `pando fn generate FILE` makes a capture"))
            }
            _ => Failure::Invalid(e.to_string()),
        }
    }
}
