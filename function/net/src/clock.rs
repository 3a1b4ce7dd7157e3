//! The clock of the kernel's packet stamps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time by the clock of the kernel's packet stamps.
pub fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
