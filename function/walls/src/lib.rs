//! The surroundings of a unit's process: the walls of its tenant, its control group, and its log.
//! They never look at a packet.

/// Prints a line like `eprintln!`, but ignores write errors. A full log must not end a unit.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

pub mod cgroup;
pub mod sandbox;
