//! The last words of a memory host.

use super::*;

#[test]
fn a_host_that_ends_names_a_bounded_number_of_leases() {
    let loans = |n: u64| -> Vec<Loan> {
        (0..n)
            .map(|k| Loan {
                borrower: format!("b{k}"),
                slots: 256 * (k + 1),
                connections: k as usize,
            })
            .collect()
    };
    assert_eq!(lost(&loans(0)), "");
    for (n, lines) in [(1, 1), (20, 20), (21, 21), (100_000, 21)] {
        let text = lost(&loans(n));
        assert_eq!(text.lines().count(), lines);
        assert!(text.starts_with("pando-mem: ending with 1.0 MiB lent to b0, 0 connections\n"));
        let last = format!("pando-mem: and {} more leases\n", n.saturating_sub(20));
        assert_eq!(text.ends_with(&last), n > 20);
    }
    assert!(available_bytes() > 0 && available_bytes() < 1 << 50, "of this machine");
}
