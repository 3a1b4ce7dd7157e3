//! The configuration of the launcher, and any other text in its place.

use crate::config::{HOSTS_MAX, parse};
use memory_core::prefetch::Kind;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

const FINE: &str = "exe=2049:17 local=16777216 slots=8 copies=2 patience=60000000000 \
    prefetch=extent mode=thread token=01020304050607080910111213141516\
    17181920212223242526272829303132 \
    stats=5 host=02001b9e7f0000010000000000000000/77 host=02001b9f7f0000010000000000000000/78";

fn cases(n: u32) -> ProptestConfig {
    ProptestConfig {
        cases: n,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(7),
        ..ProptestConfig::default()
    }
}

#[test]
fn every_word_of_a_configuration_is_read() {
    let c = parse(FINE).expect("a configuration");
    assert_eq!((c.exe, c.local_bytes, c.slots, c.copies), ((2049, 17), 16 << 20, 8, 2));
    assert_eq!((c.patience_ns, c.prefetch, c.sigbus), (60_000_000_000, Kind::Extent, false));
    assert_eq!((c.token[0], c.token[31], c.stats, c.hosts_len), (1, 0x32, 5, 2));
    assert_eq!((c.hosts[0].family(), c.hosts[0].len), (libc::AF_INET, 16));
    assert_eq!(c.hosts[1].bytes[..8], [2, 0, 0x1b, 0x9f, 127, 0, 0, 1]);
    assert_eq!((c.hosts[0].lease, c.hosts[1].lease), (77, 78));
}

#[test]
fn a_configuration_that_cannot_be_kept_is_refused() {
    let host = " host=02001b9e7f0000010000000000000000/79";
    for (from, to) in [
        ("copies=2", "copies=0"),
        ("copies=2", "copies=3"),
        ("copies=2", "copies=-1"),
        ("slots=8", "slots=0"),
        ("local=16777216", "local=0"),
        ("local=16777216", "local=99999999999999999999"),
        ("prefetch=extent", "prefetch="),
        ("exe=2049:17", "exe=2049"),
        ("stats=5", "stats=5 later=1"),
        ("stats=5", "stats"),
        // Digits of a number are not those of hexadecimal bytes.
        ("token=01", "token=+1"),
        ("token=01", "token=0"),
        ("token=01", "token=0102"),
        ("token=01", "token=ä"),
        ("/77", ""),
        ("/77", "/-77"),
        ("host=02001b9e", "host="),
    ] {
        let text = FINE.replacen(from, to, 1);
        let fine = from == "host=02001b9e";
        assert_eq!(parse(&text).is_some(), fine, "{to}");
    }
    assert!(parse(&(FINE.to_string() + &host.repeat(HOSTS_MAX - 2))).is_some());
    assert!(parse(&(FINE.to_string() + &host.repeat(HOSTS_MAX - 1))).is_none(), "too many hosts");
    for bytes in [110, 111, 1000] {
        let long = format!("{FINE} host={}/1", "ab".repeat(bytes));
        assert_eq!(parse(&long).is_some(), bytes <= 110, "{bytes} bytes of an address");
    }
    let without = FINE.split(' ').filter(|w| !w.starts_with("host")).collect::<Vec<_>>().join(" ");
    assert!(parse(&without).is_none() && parse("").is_none());
}

proptest! {
    #![proptest_config(cases(3000))]

    /// A text with changed bytes is refused, or is a configuration that the pager can start with.
    #[test]
    fn any_text_is_refused_or_is_a_configuration(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<char>()), 0..4),
        cut in any::<prop::sample::Index>(), cuts in any::<bool>(),
    ) {
        let mut text: Vec<char> = FINE.chars().collect();
        for (at, c) in changes {
            let at = at.index(text.len());
            text[at] = c;
        }
        if cuts {
            text.truncate(cut.index(text.len()));
        }
        if let Some(c) = parse(&text.into_iter().collect::<String>()) {
            prop_assert!((1..=HOSTS_MAX).contains(&c.hosts_len));
            prop_assert!((1..=c.hosts_len).contains(&c.copies));
            prop_assert!(c.local_bytes > 0 && c.slots > 0);
            prop_assert!(c.hosts.iter().all(|h| h.len <= h.bytes.len()));
        }
    }
}
