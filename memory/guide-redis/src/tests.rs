//! The layout is found at its actual offset only. The guide does not call the allocator: the memory
//! here is from none.

mod commands;
mod redis;

use super::*;

/// Returns memory as from the program's own allocator, between pages that must not be read.
unsafe fn foreign(bytes: usize) -> *mut u8 {
    unsafe {
        let (page, flags) = (4096, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let whole = bytes.next_multiple_of(page) + 2 * page;
        let at =
            libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0).cast::<u8>();
        let inside = at.add(page);
        assert_eq!(
            libc::mprotect(inside.cast(), whole - 2 * page, libc::PROT_READ | libc::PROT_WRITE),
            0
        );
        inside
    }
}

/// Makes a quicklist of nodes with `held` elements each. The counts are at `count_at`, and each
/// element takes `each` bytes.
unsafe fn quicklist(count_at: usize, held: &[u16], each: usize) -> *const u8 {
    unsafe {
        let mut next = 0usize;
        for &n in held.iter().rev() {
            let (node, bytes) = (foreign(64), n as usize * each + 7);
            let entry = foreign(bytes);
            entry.cast::<u32>().write(bytes as u32);
            entry.add(bytes - 1).write(PACK_END);
            node.add(8).cast::<usize>().write(next);
            node.add(16).cast::<usize>().write(entry as usize);
            node.add(24).cast::<u32>().write(bytes as u32);
            node.add(count_at).cast::<u16>().write(n);
            next = node as usize;
        }
        let list = foreign(64).cast::<usize>();
        list.write(next);
        list.cast()
    }
}

#[test]
fn a_layout_fits_where_the_counts_add_up() {
    unsafe {
        for at in COUNTS_AT {
            let list = quicklist(at, &[7, 8, 25], 1003);
            let fitting: Vec<usize> =
                COUNTS_AT.into_iter().filter(|&c| fits(list, c, 40)).collect();
            assert_eq!(fitting, [at]);
            assert!(!fits(list, at, 41), "not all elements");
        }
        assert!(
            !COUNTS_AT.into_iter().any(|c| fits(quicklist(40, &[20, 20], 1003), c, 40)),
            "counts elsewhere"
        );
        assert!(
            !fits(quicklist(32, &[20, 20], 5000), 32, 40),
            "an entry longer than its elements want"
        );
        assert!(
            !fits(quicklist(32, &[20, 20], 900), 32, 40),
            "an entry too short for its elements"
        );
        assert!(!fits(quicklist(32, &[40], 1003), 32, 40), "one node shows nothing");
        let list = quicklist(32, &[20, 20], 1003);
        (word(list, 0) as *mut u8).add(24).cast::<u32>().write(999);
        assert!(!fits(list, 32, 40), "a node that says another length than its entry");
        let list = quicklist(32, &[20, 20], 1003);
        let entry = word(word(list, 0) as *const u8, 16) as *mut u8;
        entry.add(pack_bytes(entry) - 1).write(0);
        assert!(!fits(list, 32, 40), "an entry without its end");
    }
}

#[test]
fn a_length_is_in_the_head_of_a_string() {
    unsafe {
        let at = foreign(64).add(17);
        for (kind, bytes, head) in
            [(1u8, 200usize, 3), (2, 60_000, 5), (3, 100_000, 9), (4, 1 << 33, 17)]
        {
            at.sub(1).write(kind);
            at.sub(head).copy_from_nonoverlapping(bytes.to_le_bytes().as_ptr(), (head - 1) / 2);
            assert_eq!(sds_bytes(at), bytes);
        }
        at.sub(1).write(9 << 3);
        assert_eq!(sds_bytes(at), 9);
        at.sub(1).write(7);
        assert_eq!(sds_bytes(at), 0, "no kind that there is");
    }
}
