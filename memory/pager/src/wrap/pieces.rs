//! The pieces of a vectored call, copied out of far memory and pinned up to the limit of a call.

use crate::pin::{Pin, is_far};
use crate::sys;
use libc::iovec;

/// Most pieces that are listed on the caller's stack, which may be small.
const FEW: usize = 16;
/// Most pieces that the kernel takes.
const MANY: usize = libc::UIO_MAXIOV as usize;

/// Pieces, and the pins that keep them.
struct Lists<const N: usize> {
    list: [iovec; N],
    pins: [Option<Pin>; N],
}

pub struct Pieces {
    few: Lists<FEW>,
    /// A separate mapping, if there are more than a few pieces.
    many: *mut Lists<MANY>,
    pub len: usize,
    pub bytes: usize,
}

impl Pieces {
    /// Pins the parts of `count` pieces after the first `skip` bytes, up to `bytes_max` bytes.
    pub unsafe fn new(
        from: *const iovec,
        count: usize,
        mut skip: usize,
        bytes_max: usize,
    ) -> Pieces {
        unsafe {
            let nothing = iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
            let few = Lists { list: [nothing; FEW], pins: [const { None }; FEW] };
            let mut p = Pieces { few, many: core::ptr::null_mut(), len: 0, bytes: 0 };
            if count > FEW {
                p.many = sys::reserve(size_of::<Lists<MANY>>()).cast();
            }
            for i in 0..count.min(MANY) {
                let mut piece = *from.add(i);
                let skipped = skip.min(piece.iov_len);
                skip -= skipped;
                piece.iov_base = piece.iov_base.byte_add(skipped);
                piece.iov_len = (piece.iov_len - skipped).min(bytes_max - p.bytes);
                if piece.iov_len == 0 && (skipped > 0 || p.bytes == bytes_max) {
                    continue;
                }
                let pin = if is_far(piece.iov_base.cast(), piece.iov_len) {
                    Pin::new(piece.iov_base.cast(), piece.iov_len)
                } else {
                    None
                };
                p.add(piece, pin);
            }
            p
        }
    }

    unsafe fn add(&mut self, piece: iovec, pin: Option<Pin>) {
        unsafe {
            let (list, pins) = if self.many.is_null() {
                (self.few.list.as_mut_ptr(), self.few.pins.as_mut_ptr())
            } else {
                ((&raw mut (*self.many).list).cast(), (&raw mut (*self.many).pins).cast())
            };
            list.add(self.len).write(piece);
            pins.add(self.len).write(pin);
            self.len += 1;
            self.bytes += piece.iov_len;
        }
    }

    pub fn list(&self) -> *const iovec {
        if self.many.is_null() {
            self.few.list.as_ptr()
        } else {
            unsafe { (&raw const (*self.many).list).cast() }
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        if self.many.is_null() {
            return;
        }
        unsafe {
            let pins: *mut Option<Pin> = (&raw mut (*self.many).pins).cast();
            (0..self.len).for_each(|i| pins.add(i).drop_in_place());
            sys!(libc::SYS_munmap, self.many, size_of::<Lists<MANY>>());
        }
    }
}
