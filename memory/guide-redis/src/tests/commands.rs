//! The guide with a Redis of the tests: which memory a command names before it runs.

use super::redis::{self, REDIS, command, object_of, pack, quicklist, sds, set};
use crate::*;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::collections::BTreeSet;

/// Makes a list under a key; returns the entry of each node.
fn list(name: &str, held: &[u16]) -> Vec<(usize, usize)> {
    let (list, entries) = quicklist(32, held, 11);
    set(name, object_of(LIST, QUICKLIST, list));
    entries
}

/// Returns a configuration of `n` cases, which are the same in every run.
fn cases(n: u32) -> ProptestConfig {
    ProptestConfig {
        cases: n,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(400))]

    /// A range of a list fetches the nodes that hold an element of it, and no others.
    #[test]
    fn a_range_fetches_the_nodes_of_its_elements(
        held in proptest::collection::vec(1u16..40, 1..30),
        from in -700i64..700, to in -700i64..700, one in any::<bool>(),
    ) {
        redis::begin();
        let entries = list("l", &held);
        let (a, b) = (from.to_string(), to.to_string());
        let to = if one { from } else { to };
        let rounds = if one { command(&["LINDEX", "l", &a]) } else {
            command(&["lrange", "l", &a, &b])
        };
        let count: i64 = held.iter().map(|&n| n as i64).sum();
        let index = |i: i64| if i < 0 { i + count } else { i };
        // Redis begins at the first element, but has no element before it for a single index.
        let wanted = index(from).max(0)..=index(to).min(count - 1);
        let mut expected = BTreeSet::new();
        let mut first = 0;
        for (&n, &entry) in held.iter().zip(&entries) {
            if (first..first + n as i64).any(|at| wanted.contains(&at)) {
                expected.insert(entry);
            }
            first += n as i64;
        }
        let fetched: BTreeSet<_> = rounds.iter().flatten().copied().collect();
        if wanted.is_empty() {
            prop_assert!(fetched.len() <= 1, "an empty range fetched {} nodes", fetched.len());
        } else {
            prop_assert_eq!(fetched, expected);
        }
        prop_assert!(rounds.len() <= 1, "one round is enough");
    }

    /// Any text as a number, and any number, names memory of the list only.
    #[test]
    fn any_argument_stays_within_the_list(from in any::<i64>(), to in "[ -~]{0,12}") {
        redis::begin();
        let entries: BTreeSet<_> = list("l", &[3, 1, 9]).into_iter().collect();
        let from = from.to_string();
        for words in [&["lrange", "l", &from, &to][..], &["lindex", "l", &from], &["lrange", "l"]] {
            let fetched: BTreeSet<_> = command(words).into_iter().flatten().collect();
            prop_assert!(fetched.is_subset(&entries));
        }
    }
}

#[test]
fn a_value_of_known_length_takes_one_round_and_one_of_unknown_length_two() {
    redis::begin();
    for (name, bytes) in [("short", 9), ("long", 300), ("huge", 100_000)] {
        let at = sds(&vec![b'v'; bytes]);
        set(name, object_of(STRING, RAW, at));
        let head = (at - HEAD_BYTES, 2 * HEAD_BYTES);
        assert_eq!(command(&["GET", name]), [vec![head], vec![(at, bytes)]], "{name}");
        REDIS.with_borrow_mut(|r| r.extents.insert(at, bytes + 77));
        assert_eq!(command(&["get", name]), [vec![(at, bytes + 77)]], "{name}");
    }
    for encoding in [LISTPACK, ZIPLIST] {
        let at = pack(5000);
        set("hash", object_of(4, encoding, at));
        let head = (at - HEAD_BYTES, 2 * HEAD_BYTES);
        for words in [&["hgetall", "hash"][..], &["HGET", "hash", "f"], &["zrange", "hash"]] {
            assert_eq!(command(words), [vec![head], vec![(at, 5000)]]);
        }
    }
}

#[test]
fn commands_that_the_guide_does_not_read_name_no_memory() {
    redis::begin();
    set("text", object_of(STRING, RAW, sds(b"value")));
    // An embedded string, a number and a hash table are small, or not in one piece.
    for (kind, encoding) in [(STRING, 8), (STRING, 1), (4, 2), (LIST, 6), (15, 15)] {
        set("odd", object_of(kind, encoding, 0x10));
        assert_eq!(command(&["get", "odd"]), [vec![]; 1], "type {kind}, encoding {encoding}");
    }
    assert_eq!(command(&["get", "missing"]), [vec![]; 1]);
    set("empty", 0);
    assert_eq!(command(&["get", "empty"]), [vec![]; 1]);
    REDIS.with_borrow_mut(|r| r.requests = 0);
    let silent: [&[&str]; 6] = [
        &["set", "text", "x"],
        &["ping"],
        &["get"],
        &["getx", "text"],
        &["ge", "text"],
        &["", "a"],
    ];
    for words in silent {
        assert_eq!(command(words), [[]; 0], "{words:?}");
    }
    assert_eq!(REDIS.with_borrow(|r| r.requests), 6, "every command is a request");
}

#[test]
fn a_command_with_more_keys_than_fit_fetches_as_many_as_fit() {
    redis::begin();
    let names: Vec<String> = (0..3000).map(|i| format!("k{i}")).collect();
    let at: Vec<usize> = names.iter().map(|_| sds(b"some value")).collect();
    for (name, &at) in names.iter().zip(&at) {
        set(name, object_of(STRING, RAW, at));
    }
    let words: Vec<&str> = ["mget"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let rounds = command(&words);
    assert_eq!(rounds.len(), 2);
    assert_eq!((rounds[0].len(), rounds[1].len()), (UNKNOWN_MAX, UNKNOWN_MAX));
    assert!(rounds[1].iter().zip(&at).all(|(range, &at)| *range == (at, 10)));
    // Known lengths fill the list; no place is left for a value of unknown length.
    REDIS.with_borrow_mut(|r| r.extents.extend(at[1..].iter().map(|&at| (at, 4096))));
    let rounds = command(&words);
    assert_eq!((rounds.len(), rounds[0].len()), (1, RANGES_MAX));
    // A list of more nodes than fit.
    let entries = list("nodes", &[1; 2000]);
    let rounds = command(&["lrange", "nodes", "0", "-1"]);
    assert_eq!(rounds, [entries[..RANGES_MAX].to_vec()]);
    let rounds = command(&["lrange", "nodes", "1900", "-1"]);
    assert_eq!(rounds[0].len(), 100, "from the nearer end");
}

#[test]
fn the_layout_of_a_release_is_found_and_nothing_is_left_of_the_search() {
    for (count_at, fill, found) in
        [(32, 16, Some(32)), (28, 16, Some(28)), (40, 16, None), (32, 40, None), (28, 39, Some(28))]
    {
        redis::begin();
        REDIS.with_borrow_mut(|r| (r.count_at, r.fill) = (count_at, fill));
        assert_eq!(unsafe { find_layout(std::ptr::null_mut()) }, found, "{count_at}, {fill}");
        REDIS.with_borrow(|r| {
            assert_eq!((r.open, r.strings, r.keys.len()), (0, 0, 0), "the search left something");
            assert!(r.rounds.is_empty());
        });
    }
    redis::begin();
    assert!(unsafe { knows_strings(std::ptr::null_mut()) });
    assert_eq!(REDIS.with_borrow(|r| r.strings), 0);
}
