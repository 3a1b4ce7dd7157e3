//! The reasons why a file is not a function.

use pando_abi::DescriptorError;

/// Maximum bytes of a module, ten times the size of a Go function. A compiler needs some fifty
/// times a module's size.
pub const MODULE_BYTES_MAX: u64 = 64 << 20;

/// Reason why a file is not a function.
#[derive(Debug, thiserror::Error)]
pub enum ModuleError {
    /// The file is not readable.
    #[error("read {path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is larger than [`MODULE_BYTES_MAX`].
    #[error("{path} has more than {} MiB, which no function needs: is it built without debug \
        information?", MODULE_BYTES_MAX >> 20)]
    TooLarge {
        /// The file.
        path: String,
    },
    /// The file is not WebAssembly, or does not validate.
    #[error("{path} is not a WebAssembly module: {reason}. `pando fn build DIR` makes one")]
    NotWasm {
        /// The file.
        path: String,
        /// The compiler's message.
        reason: String,
    },
    /// The compiler exceeded its bounds.
    #[error("{path} is too much to compile: {reason}")]
    TooMuch {
        /// The file.
        path: String,
        /// The exceeded bound.
        reason: String,
    },
    /// The compiler's process failed.
    #[error("compile {path}: {source}")]
    Compiler {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The folder of compiled code is unusable.
    #[error("keep the code of {path}: {source}")]
    Cache {
        /// The file.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The module imports something that units do not offer.
    #[error("{path} imports what a unit does not offer: {reason}")]
    Import {
        /// The file.
        path: String,
        /// The linker's message.
        reason: String,
    },
    /// The module lacks a part of the contract.
    #[error(
        "{path} does not export {name}: is it built with the SDK (PANDO_FUNCTION in pando_nf.h)?"
    )]
    Export {
        /// The file.
        path: String,
        /// The missing export.
        name: &'static str,
    },
    /// The module's descriptor is invalid.
    #[error("{path}: {source}")]
    Descriptor {
        /// The file.
        path: String,
        /// The error in the descriptor.
        source: DescriptorError,
    },
    /// The module traps before its first packet.
    #[error("{path}: {during}: {trap}")]
    Start {
        /// The file.
        path: String,
        /// The call that trapped.
        during: &'static str,
        /// The trap.
        trap: String,
    },
    /// The function refuses its configuration.
    #[error(
        "{path} refuses its configuration with complaint {complaint}: settings are given as --set \
         KEY=VALUE. docs/guides/network-function.md lists those of Pando's own functions; in \
         another, see what its configure() returns {complaint} for"
    )]
    Configuration {
        /// The file.
        path: String,
        /// The number that the function returned.
        complaint: i32,
    },
    /// The configuration exceeds the function's room.
    #[error("{path} has room for {room} bytes of configuration, {given} are given")]
    ConfigurationSize {
        /// The file.
        path: String,
        /// Bytes of room.
        room: usize,
        /// Bytes of configuration.
        given: usize,
    },
}
