//! The configuration of the IDS, walked as its description asks, against a search of each content
//! by itself.

use pando_rules::{Head, Pattern, compile};
use pando_traffic::random::Random;
use std::collections::BTreeSet;

const SLOW: u32 = 1 << 31;
const NODE: u32 = (1 << 24) - 1;

/// One automaton in the words of a configuration, as `function/functions/ids` reads it.
struct Automaton<'a> {
    nodes: &'a [u32],
    rows: &'a [u32],
    edges: &'a [u32],
    outputs: &'a [u32],
}

impl<'a> Automaton<'a> {
    /// Splits both automata from the words behind the header.
    fn both(words: &'a [u32]) -> [Automaton<'a>; 2] {
        let mut rest = &words[12..];
        let mut part = |length: usize| {
            let (now, later) = rest.split_at(length);
            rest = later;
            now
        };
        [2, 6].map(|at| {
            let sizes = [0, 1, 2, 3].map(|n| words[at + n] as usize);
            Automaton {
                nodes: part(5 * sizes[0]),
                rows: part(256 * sizes[1]),
                edges: part(sizes[2]),
                outputs: part(sizes[3]),
            }
        })
    }

    fn node(&self, at: u32) -> &[u32] {
        &self.nodes[5 * at as usize..][..5]
    }

    fn outputs(&self, at: u32) -> &[u32] {
        &self.outputs[self.node(at)[3] as usize..][..self.node(at)[4] as usize]
    }

    fn is_dense(&self, at: u32) -> bool {
        (at as usize) < self.rows.len() / 256
    }

    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            if self.is_dense(at) {
                let entry = self.rows[256 * at as usize + usize::from(byte)];
                let next = entry & NODE;
                let slow = !self.is_dense(next) || !self.outputs(next).is_empty();
                assert_eq!(entry & SLOW != 0, slow, "the flag of an entry");
                return next;
            }
            let [first, count, fail, ..] = *self.node(at) else { panic!("five words") };
            let edges = &self.edges[first as usize..][..count as usize];
            if let Some(edge) = edges.iter().find(|edge| *edge >> 24 == u32::from(byte)) {
                return edge & NODE;
            }
            assert!(fail < at, "a search ends");
            at = fail;
        }
    }

    fn find(&self, text: impl Iterator<Item = u8>) -> BTreeSet<u32> {
        let (mut at, mut found) = (0, BTreeSet::new());
        for byte in text {
            at = self.step(at, byte);
            found.extend(self.outputs(at));
        }
        found
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// Returns contents over a small alphabet, so that many share beginnings and ends.
fn patterns(random: &mut Random, count: u32, longest: u64) -> Vec<Pattern> {
    let pattern = |sid| {
        let nocase = random.below(2) == 0;
        let length = 4 + random.below(longest - 3);
        let letter = |random: &mut Random| b"abAB\xe9\0"[random.below(6) as usize];
        let mut bytes: Vec<u8> = (0..length).map(|_| letter(random)).collect();
        if nocase {
            bytes.make_ascii_lowercase();
        }
        Pattern { sid, bytes, nocase, head: Head::any() }
    };
    (0..count).map(pattern).collect()
}

/// Returns the numbers of the contents in a text, one by one.
fn plain(patterns: &[Pattern], text: &[u8]) -> BTreeSet<u32> {
    let lower = text.to_ascii_lowercase();
    let has = |pattern: &Pattern| {
        let text = if pattern.nocase { &lower } else { text };
        text.windows(pattern.bytes.len()).any(|part| part == pattern.bytes)
    };
    (0..).zip(patterns).filter(|(_, pattern)| has(pattern)).map(|(number, _)| number).collect()
}

/// Texts with contents in them, whole, cut, and overlapping.
fn text(random: &mut Random, patterns: &[Pattern]) -> Vec<u8> {
    let mut text = Vec::new();
    for _ in 0..12 {
        let bytes = &patterns[random.below(patterns.len() as u64) as usize].bytes;
        let from = random.below(bytes.len() as u64 + 1) as usize;
        let part = &bytes[if random.below(3) == 0 { from } else { 0 }..];
        text.extend(part);
        text.truncate(text.len() - random.below(3).min(text.len() as u64) as usize);
        text.extend_from_slice(&b"bA"[..random.below(3) as usize]);
    }
    if random.below(2) == 0 { text.to_ascii_uppercase() } else { text }
}

/// Few contents have rows only. Many have nodes without rows, which fall back.
#[test]
fn a_walk_finds_each_content_that_is_there() {
    for (seed, count, longest) in [(1, 1, 4), (2, 20, 8), (3, 60, 6), (4, 900, 24)] {
        let mut random = Random::new(seed);
        let patterns = patterns(&mut random, count, longest);
        let configuration = words(&compile(&patterns).unwrap());
        let [exact, folded] = Automaton::both(&configuration);
        assert_eq!(configuration[10], count);
        assert_eq!(exact.edges.len() + folded.edges.len() > 0, count == 900, "nodes without rows");
        for _ in 0..150 {
            let text = text(&mut random, &patterns);
            let mut found = exact.find(text.iter().copied());
            found.extend(folded.find(text.iter().map(u8::to_ascii_lowercase)));
            assert_eq!(found, plain(&patterns, &text), "seed {seed}: {text:02x?}");
        }
    }
}

/// Each rule names its sets, which lie within the configuration. Equal sets are there once.
#[test]
fn rules_share_their_sets() {
    let text = "alert tcp 10.0.0.0/8 any -> any 80 (content:\"one of two\"; sid:1;)\n\
                alert udp any any <> 10.0.0.0/8 80 (content:\"the other\"; sid:2;)\n";
    let rules = pando_rules::parse(text, "x.rules", &Default::default()).unwrap();
    let configuration = words(&compile(&rules.patterns).unwrap());
    let (count, set_words) = (configuration[10] as usize, configuration[11] as usize);
    let (rest, sets) = configuration.split_at(configuration.len() - set_words);
    let rules = &rest[rest.len() - 6 * count..];
    assert_eq!((rules[0], rules[6]), (1, 2), "the sids");
    assert_eq!((rules[2], rules[5]), (rules[10], rules[11]), "the network, the port");
    assert_eq!((rules[3], rules[4]), (rules[9], rules[8]), "any port, any address");
    for set in rules.chunks(6).flat_map(|rule| &rule[2..]) {
        let [narrow, wide] = [sets[*set as usize], sets[*set as usize + 1]];
        assert!(*set as usize + 2 + 2 * narrow as usize + 8 * wide as usize <= set_words);
    }
    assert_eq!(sets[rules[2] as usize..][..4], [1, 0, 0x0a00_0000, 0x0aff_ffff]);
}
