//! The pager for Linux programs, preloaded into them by `pando-mem run`. It gives anonymous memory
//! from a region of its own, keeps as much of it local as the budget allows, and the rest on memory
//! hosts.
//!
//! It never touches the program's files or sockets. In a process that `pando-mem run` did not
//! start, it does nothing.

// The tests have no wrappers, so much is unused there.
#![cfg_attr(test, allow(dead_code, unused_imports))]

mod atfork;
mod budget;
mod carry;
mod config;
mod descriptor;
mod evict;
mod fault;
mod fetch;
mod fork;
mod guide;
mod handler;
mod hosts;
mod identity;
mod lane;
mod lead;
mod memory;
mod mode;
mod next;
mod pager;
mod pin;
mod port;
mod queue;
mod room;
mod shared;
mod stack;
mod start;
mod sys;
mod tend;
mod threads;
mod transport;
mod uffd;
#[cfg(not(test))]
mod wrap;

#[cfg(test)]
mod tests;

use memory_core::stats::Stats;
use next::next;
use sys::raw::sys;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[cfg(not(test))]
extern "C" fn start() {
    unsafe {
        let raw = libc::getenv(config::VARIABLE.as_ptr());
        if raw.is_null() || *raw as u8 == b'-' {
            return;
        }
        let Ok(text) = core::ffi::CStr::from_ptr(raw).to_str() else { return };
        let Some(config) = config::parse(text) else {
            sys::die(format_args!(
                "PANDO_MEM was not written by this release's pando-mem: start the program with \
                 `pando mem run`"
            ));
        };
        let mut exe: libc::stat = core::mem::zeroed();
        if libc::stat(c"/proc/self/exe".as_ptr(), &mut exe) != 0
            || (exe.st_dev, exe.st_ino) != config.exe
        {
            return;
        }
        sys::apart::keep_error();
        // Processes that this program starts run without far memory. The variable is overwritten,
        // not removed: programs that write their title over the environment rely on its being in
        // one piece.
        core::ptr::write_bytes(raw, b'-', libc::strlen(raw));
        if !config.moves {
            mode::choose_copies();
        }
        if config.sigbus {
            handler::install();
        }
        handler::real_sigaction();
        wrap::process::register();
        wrap::heap::begin();
        start::start(config, stats(config.stats));
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

/// Ends the leases of a program that exits. Memory hosts notice a killed program some seconds
/// later.
extern "C" fn end() {
    if let Some(pager) = pager::pager().filter(|p| !p.fork.is_shared()) {
        pager.hosts.part();
    }
}

/// Returns the counters: in the launcher's file if there is one, or else in private memory. The
/// launcher's lock on the file marks the counters as live, and lasts as long as the mapping.
unsafe fn stats(fd: i32) -> &'static Stats {
    unsafe {
        let bytes = size_of::<Stats>().next_multiple_of(4096);
        if fd >= 0 {
            let at = sys!(
                libc::SYS_mmap,
                0,
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0
            );
            sys!(libc::SYS_close, fd);
            if at > 0 {
                return &*(at as *const Stats);
            }
        }
        &*sys::reserve(bytes).cast::<Stats>()
    }
}
