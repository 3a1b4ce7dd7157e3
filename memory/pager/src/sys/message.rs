//! Messages for the user, on the program's standard error.

use super::error;
use super::raw::sys;

/// A fixed buffer to format into.
struct Text {
    bytes: [u8; 512],
    len: usize,
}

impl core::fmt::Write for Text {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let n = s.len().min(self.bytes.len() - self.len);
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// Writes one line to standard error. Cuts a longer one.
pub fn say(what: core::fmt::Arguments) {
    let mut t = Text { bytes: [0; 512], len: 0 };
    let _ = core::fmt::write(&mut t, format_args!("pando-mem: {what}"));
    t.len = t.len.min(t.bytes.len() - 1);
    t.bytes[t.len] = b'\n';
    t.len += 1;
    unsafe { error::write(&t.bytes[..t.len]) };
}

/// Exit code of a program that lost its far memory.
const EXIT_LOST: i32 = 97;

/// Ends the program, before it can read a wrong byte.
pub fn die(what: core::fmt::Arguments) -> ! {
    say(what);
    loop {
        unsafe { sys!(libc::SYS_exit_group, EXIT_LOST) };
    }
}
