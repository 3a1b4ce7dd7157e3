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
        if raw.is_null() {
            return;
        }
        if *raw as u8 == USED {
            report_replaced(raw);
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
        sys::error::keep();
        // Processes that this program starts run without far memory. The variable is overwritten,
        // not removed: programs that write their title over the environment rely on its being in
        // one piece.
        let len = libc::strlen(raw);
        core::ptr::write_bytes(raw.cast::<u8>(), USED, len);
        raw.add(1).cast::<[u8; 4]>().write_unaligned(pid_text());
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

/// The variable is overwritten with this, and with the number of the process.
const USED: u8 = b'-';

/// Returns the number of this process as four letters without a zero.
fn pid_text() -> [u8; 4] {
    let pid = unsafe { sys!(libc::SYS_getpid) } as u32;
    [0, 6, 12, 18].map(|shift| b'0' + (pid >> shift & 0x3f) as u8)
}

/// Reports that the program on far memory has started another one in its place, as `nice`, `env`
/// and shells do: that one has no far memory. Processes that it has started beside itself have
/// other numbers.
unsafe fn report_replaced(raw: *const core::ffi::c_char) {
    unsafe {
        let of = pid_text();
        let is_same = (0..of.len()).all(|i| *raw.add(1 + i) as u8 == of[i]);
        if !is_same {
            return;
        }
        let mut path = [0u8; 256];
        let (link, room) = (c"/proc/self/exe".as_ptr(), path.len());
        let n = sys!(libc::SYS_readlink, link, path.as_mut_ptr(), room).max(0) as usize;
        let name = core::str::from_utf8(&path[..n]).unwrap_or("another program");
        sys::say(format_args!(
            "the program that `pando mem run` started has become {name}, which has no far memory; \
             give `pando mem run` that program itself"
        ));
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
