//! Compiles contents into the two automata that `function/functions/ids` walks, followed by the
//! rules.

use std::collections::{BTreeMap, VecDeque};

use super::Pattern;
use super::head::{Addresses, Ports, Protocol};

/// Flag in an entry of a row: the next node has no row, or it has output.
const SLOW: u32 = 1 << 31;
/// The nodes nearest to the root have a full row each. Real traffic spends most of its bytes there.
const ROWS_MAX: usize = 4096;
/// The number of a next node has 24 bits, beside the 8 bits of its byte.
const NODES_MAX: usize = 1 << 24;

pub(super) struct Node {
    children: BTreeMap<u8, u32>,
    fail: u32,
    /// Numbers of the rules with contents that end here.
    pub rules: Vec<u32>,
}

/// Returns both automata of some patterns, with their rules, as the configuration of the IDS.
pub fn compile(patterns: &[Pattern]) -> Result<Vec<u8>, String> {
    let mut words = vec![u32::from_le_bytes(*b"PIDS"), 3];
    let mut bodies = Vec::new();
    for nocase in [false, true] {
        let body = automaton(patterns.iter().enumerate().filter(|(_, p)| p.nocase == nocase))?;
        words.extend(body.sizes);
        bodies.push(body.words);
    }
    let mut sets = Sets::default();
    let rules: Vec<u32> =
        patterns.iter().flat_map(|pattern| rule_words(pattern, &mut sets)).collect();
    words.extend([patterns.len() as u32, sets.words.len() as u32]);
    words.extend(bodies.into_iter().flatten().chain(rules).chain(sets.words));
    Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
}

/// Flags of a rule, as the function reads them.
const TCP: u32 = 1;
const UDP: u32 = 2;
const BOTH_WAYS: u32 = 4;
const ESTABLISHED: u32 = 8;
const TO_SERVER: u32 = 16;
const TO_CLIENT: u32 = 32;

fn rule_words(pattern: &Pattern, sets: &mut Sets) -> [u32; 6] {
    let head = &pattern.head;
    let protocols = match head.protocol {
        Protocol::Ip => TCP | UDP,
        Protocol::Tcp => TCP,
        Protocol::Udp => UDP,
    };
    let asked = [
        (head.both_ways, BOTH_WAYS),
        (head.flow.established, ESTABLISHED),
        (head.flow.to_server, TO_SERVER),
        (head.flow.to_client, TO_CLIENT),
    ];
    let flags =
        asked.iter().filter(|(asked, _)| *asked).fold(protocols, |flags, (_, flag)| flags | flag);
    let [from, to] = [&head.from, &head.to]
        .map(|(addresses, ports)| (sets.addresses(addresses), sets.ports(ports)));
    [pattern.sid, flags, from.0, from.1, to.0, to.1]
}

/// Sets of addresses and ports, each stored once: the number of 32-bit ranges, the number of
/// 128-bit ranges, then the ranges.
#[derive(Default)]
struct Sets {
    words: Vec<u32>,
    known: BTreeMap<Vec<u32>, u32>,
}

impl Sets {
    fn add(&mut self, set: Vec<u32>) -> u32 {
        let at = self.words.len() as u32;
        let at = *self.known.entry(set.clone()).or_insert(at);
        if at as usize == self.words.len() {
            self.words.extend(set);
        }
        at
    }

    fn addresses(&mut self, addresses: &Addresses) -> u32 {
        let mut words = vec![addresses.v4.0.len() as u32, addresses.v6.0.len() as u32];
        words.extend(addresses.v4.0.iter().flat_map(|&(first, last)| [first as u32, last as u32]));
        let quarters = |number: u128| [96, 64, 32, 0].map(|shift| (number >> shift) as u32);
        words.extend(
            addresses
                .v6
                .0
                .iter()
                .flat_map(|&(first, last)| [quarters(first), quarters(last)].concat()),
        );
        self.add(words)
    }

    fn ports(&mut self, ports: &Ports) -> u32 {
        let mut words = vec![ports.0.len() as u32, 0];
        words.extend(ports.0.iter().flat_map(|&(first, last)| [first as u32, last as u32]));
        self.add(words)
    }
}

struct Body {
    sizes: [u32; 4],
    words: Vec<u32>,
}

fn automaton<'a>(patterns: impl Iterator<Item = (usize, &'a Pattern)>) -> Result<Body, String> {
    let mut nodes = breadth_first(&trie(patterns)?);
    let rows = link(&mut nodes);
    Ok(flatten(&nodes, &rows))
}

pub(super) fn trie<'a>(
    patterns: impl Iterator<Item = (usize, &'a Pattern)>,
) -> Result<Vec<Node>, String> {
    let new = || Node { children: BTreeMap::new(), fail: 0, rules: Vec::new() };
    let mut nodes = vec![new()];
    for (number, pattern) in patterns {
        let mut at = 0;
        for &byte in &pattern.bytes {
            at = match nodes[at].children.get(&byte) {
                Some(&child) => child as usize,
                None if nodes.len() == NODES_MAX => {
                    return Err(format!("more than {NODES_MAX} bytes of contents"));
                }
                None => {
                    let child = nodes.len();
                    nodes[at].children.insert(byte, child as u32);
                    nodes.push(new());
                    child
                }
            };
        }
        nodes[at].rules.push(number as u32);
    }
    Ok(nodes)
}

/// Returns the same nodes, numbered in breadth-first order.
pub(super) fn breadth_first(trie: &[Node]) -> Vec<Node> {
    let (mut order, mut queue) = (Vec::with_capacity(trie.len()), VecDeque::from([0u32]));
    while let Some(at) = queue.pop_front() {
        order.push(at);
        queue.extend(trie[at as usize].children.values());
    }
    let mut number = vec![0u32; trie.len()];
    order.iter().enumerate().for_each(|(n, &old)| number[old as usize] = n as u32);
    let renumbered = |&old: &u32| {
        let node = &trie[old as usize];
        let children =
            node.children.iter().map(|(&byte, &child)| (byte, number[child as usize])).collect();
        Node { children, fail: 0, rules: node.rules.clone() }
    };
    order.iter().map(renumbered).collect()
}

/// Sets every node's fail node and inherited outputs; returns the full rows of the first nodes. In
/// breadth-first order, a fail node always precedes its node.
pub(super) fn link(nodes: &mut [Node]) -> Vec<[u32; 256]> {
    let mut rows: Vec<[u32; 256]> = Vec::new();
    for at in 0..nodes.len() {
        let fail = nodes[at].fail;
        let children: Vec<(u8, u32)> = nodes[at].children.iter().map(|(&b, &c)| (b, c)).collect();
        for &(byte, child) in &children {
            let target = if at == 0 { 0 } else { walk(nodes, &rows, fail, byte) };
            nodes[child as usize].fail = target;
            let inherited = nodes[target as usize].rules.clone();
            nodes[child as usize].rules.extend(inherited);
        }
        if at < ROWS_MAX {
            let mut row = if at == 0 { [0; 256] } else { rows[fail as usize] };
            children.iter().for_each(|&(byte, child)| row[byte as usize] = child);
            rows.push(row);
        }
    }
    rows
}

pub(super) fn walk(nodes: &[Node], rows: &[[u32; 256]], mut at: u32, byte: u8) -> u32 {
    loop {
        if let Some(row) = rows.get(at as usize) {
            return row[byte as usize];
        }
        if let Some(&child) = nodes[at as usize].children.get(&byte) {
            return child;
        }
        at = nodes[at as usize].fail;
    }
}

fn flatten(nodes: &[Node], rows: &[[u32; 256]]) -> Body {
    let (mut records, mut edges, mut outputs) = (Vec::new(), Vec::new(), Vec::<u32>::new());
    for (at, node) in nodes.iter().enumerate() {
        let first = edges.len() as u32;
        if at >= rows.len() {
            edges.extend(node.children.iter().map(|(&byte, &child)| u32::from(byte) << 24 | child));
        }
        let output = outputs.len() as u32;
        outputs.extend(&node.rules);
        records.extend([
            first,
            edges.len() as u32 - first,
            node.fail,
            output,
            node.rules.len() as u32,
        ]);
    }
    let sizes = [nodes.len() as u32, rows.len() as u32, edges.len() as u32, outputs.len() as u32];
    let slow = |next: u32| next as usize >= rows.len() || !nodes[next as usize].rules.is_empty();
    let mut words = records;
    words.extend(rows.iter().flatten().map(|&next| if slow(next) { next | SLOW } else { next }));
    words.extend(edges);
    words.extend(outputs);
    Body { sizes, words }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Head;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn find(patterns: &[Pattern], text: &[u8]) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for nocase in [false, true] {
            let mut nodes = breadth_first(
                &trie(patterns.iter().enumerate().filter(|(_, p)| p.nocase == nocase)).unwrap(),
            );
            let rows = link(&mut nodes);
            let mut at = 0;
            for &byte in text {
                at = walk(
                    &nodes,
                    &rows[..rows.len().min(2)],
                    at,
                    if nocase { byte.to_ascii_lowercase() } else { byte },
                );
                found.extend(&nodes[at as usize].rules);
            }
        }
        found
    }

    proptest! {
        /// The oracle is the aho-corasick crate.
        #[test]
        fn it_finds_what_another_implementation_finds(
            words in proptest::collection::vec(
                (
                    proptest::collection::vec(
                        prop_oneof![Just(b'a'), Just(b'B'), Just(b'b')],
                        1..6,
                    ),
                    any::<bool>(),
                ),
                1..12,
            ),
            text in proptest::collection::vec(
                prop_oneof![Just(b'a'), Just(b'A'), Just(b'B'), Just(b'b')],
                0..80,
            ),
        ) {
            let patterns: Vec<Pattern> = words
                .iter()
                .enumerate()
                .map(|(n, (bytes, nocase))| {
                    let bytes = if *nocase { bytes.to_ascii_lowercase() } else { bytes.clone() };
                    Pattern { sid: n as u32, bytes, nocase: *nocase, head: Head::any() }
                })
                .collect();
            let mut expected = BTreeSet::new();
            for pattern in &patterns {
                let one = aho_corasick::AhoCorasick::builder()
                    .ascii_case_insensitive(pattern.nocase)
                    .build([&pattern.bytes])
                    .unwrap();
                if one.is_match(&text) {
                    expected.insert(pattern.sid);
                }
            }
            prop_assert_eq!(find(&patterns, &text), expected);
        }
    }
}
