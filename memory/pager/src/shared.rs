//! The transport to a memory host on the same machine: its memory, mapped here.

use crate::transport::{Broken, Transport};
use crate::{descriptor, sys};
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use memory_core::PAGE_BYTES;

/// Leased memory that is mapped here: reads and writes are copies. It survives the host's process.
/// A base of 0 is not mapped.
pub struct Shared {
    base: AtomicUsize,
}

impl Shared {
    /// Whether the memory is mapped.
    pub fn is_mapped(&self) -> bool {
        self.base.load(SeqCst) != 0
    }

    /// Maps the file of the memory, and closes it. Returns whether that succeeded.
    pub unsafe fn map(&self, fd: i32, slots: u64) -> bool {
        unsafe {
            let at = sys!(
                libc::SYS_mmap,
                0,
                slots as usize * PAGE_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0
            );
            descriptor::close(fd);
            if at > 0 {
                self.base.store(at as usize, SeqCst);
            }
            at > 0
        }
    }

    fn slot(&self, slot: u32) -> *mut u8 {
        (self.base.load(SeqCst) + slot as usize * PAGE_BYTES) as *mut u8
    }
}

impl Transport for &Shared {
    fn begin_read(&mut self, _: &[u32]) -> Result<(), Broken> {
        Ok(())
    }

    fn end_read(&mut self, slots: &[u32], into: &[*mut u8]) -> Result<(), Broken> {
        for (&slot, &page) in slots.iter().zip(into) {
            unsafe { core::ptr::copy_nonoverlapping(self.slot(slot), page, PAGE_BYTES) };
        }
        Ok(())
    }

    fn begin_write(&mut self, slots: &[u32], from: &[*mut u8]) -> Result<(), Broken> {
        for (&slot, &page) in slots.iter().zip(from) {
            unsafe { core::ptr::copy_nonoverlapping(page, self.slot(slot), PAGE_BYTES) };
        }
        Ok(())
    }

    fn end_write(&mut self) -> Result<(), Broken> {
        Ok(())
    }
}
