//! The layout is found where it is, and nowhere else.

use super::*;

/// A quicklist of nodes with `held` elements each, whose counts are at `count_at`.
unsafe fn quicklist(count_at: usize, held: &[u16], says: u32) -> *const u8 {
    let mut next = 0usize;
    for &n in held.iter().rev() {
        let node = libc::calloc(1, 64).cast::<u8>();
        let entry = libc::calloc(1, 1024).cast::<u32>();
        entry.write(says);
        node.add(8).cast::<usize>().write(next);
        node.add(16).cast::<usize>().write(entry as usize);
        node.add(24).cast::<u32>().write(says);
        node.add(count_at).cast::<u16>().write(n);
        next = node as usize;
    }
    let list = libc::calloc(1, 64).cast::<usize>();
    list.write(next);
    list.cast()
}

#[test]
fn a_layout_fits_where_the_counts_add_up() {
    unsafe {
        for at in COUNTS_AT {
            let list = quicklist(at, &[7, 8, 25], 1000);
            let fitting: Vec<usize> = COUNTS_AT.into_iter().filter(|&c| fits(list, c, 40)).collect();
            assert_eq!(fitting, [at]);
            assert!(!fits(list, at, 41), "not all elements");
        }
        assert!(!COUNTS_AT.into_iter().any(|c| fits(quicklist(40, &[20, 20], 1000), c, 40)), "counts elsewhere");
        assert!(!fits(quicklist(32, &[20, 20], 1 << 20), 32, 40), "an entry longer than its allocation");
        assert!(!fits(quicklist(32, &[40], 1000), 32, 40), "one node shows nothing");
        let list = quicklist(32, &[20, 20], 1000);
        (word(list, 0) as *mut u8).add(24).cast::<u32>().write(999);
        assert!(!fits(list, 32, 40), "a node that says another length than its entry");
    }
}
