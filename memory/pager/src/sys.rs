//! System calls without the C library, so that `errno`, thread-local storage and the wrappers of
//! this library are not involved.

pub mod apart;
pub mod error;
pub mod follow;
mod message;
pub mod raw;
mod space;
mod thread;
mod wait;

pub use message::{die, say};
pub use raw::{block_signals, call, futex_wake, now_ns, restore_signals};
pub use space::{reserve, reserve_shared, reserve_slice};
pub use thread::{spawn, spawn_apart};
pub use wait::{Lock, futex_wait};
