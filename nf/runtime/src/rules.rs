//! Snort and Suricata rules for the IDS: from rule files to the two automata that `nf/functions/ids` walks.
//!
//! Taken are the rules that one content decides: exactly one `content` that is not negated, of at least
//! [`PATTERN_BYTES_MIN`] bytes, and no condition on bytes besides it (`pcre`, `byte_test`, positions, …). Addresses,
//! ports and the kind of buffer are not looked at: an alert says that the rule's content was seen in the flow.

use std::collections::{BTreeMap, VecDeque};

/// The content of a rule.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    /// Number of the rule.
    pub sid: u32,
    /// What to look for; in lower case when `nocase`.
    pub bytes: Vec<u8>,
    /// Whether upper and lower case of ASCII are the same.
    pub nocase: bool,
}

/// Why a line is not a rule.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub struct RuleError {
    /// As given.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// What is wrong.
    pub reason: String,
}

/// What a file of rules gave.
#[derive(Debug, Default)]
pub struct Rules {
    /// One per rule that one content decides.
    pub patterns: Vec<Pattern>,
    /// Rules that ask for more, or for less.
    pub others: usize,
}

/// Shorter contents are in every other packet.
pub const PATTERN_BYTES_MIN: usize = 4;

/// Reads the rules of a file that are not commented out.
pub fn parse(text: &str, file: &str) -> Result<Rules, RuleError> {
    let mut rules = Rules::default();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let error = |reason: String| RuleError { file: file.to_owned(), line: n + 1, reason };
        match rule(line).map_err(error)? {
            Some(pattern) => rules.patterns.push(pattern),
            None => rules.others += 1,
        }
    }
    Ok(rules)
}

/// Options that look at bytes besides the content.
const CONDITIONS: [&str; 17] = [
    "pcre",
    "byte_test",
    "byte_jump",
    "byte_extract",
    "isdataat",
    "offset",
    "depth",
    "distance",
    "within",
    "startswith",
    "endswith",
    "dsize",
    "flowbits",
    "asn1",
    "urilen",
    "threshold",
    "uricontent",
];

fn rule(line: &str) -> Result<Option<Pattern>, String> {
    let open = line.find('(').ok_or("no options: a rule is `action protocol from -> to (options)`")?;
    let inside = line[open + 1..].trim_end().strip_suffix(')').ok_or("the options do not end with )")?;
    let mut contents: Vec<(Vec<u8>, bool)> = Vec::new();
    let (mut sid, mut more) = (None, false);
    for option in options(inside)? {
        let (name, value) = option.split_once(':').map_or((option, ""), |(n, v)| (n.trim(), v.trim()));
        match name {
            "sid" => sid = Some(value.parse::<u32>().map_err(|_| format!("sid {value:?} is not a number"))?),
            "content" => {
                let (bytes, rest) = content(value.trim_start_matches('!').trim_start())?;
                let modifiers: Vec<&str> = rest.split(',').map(str::trim).collect();
                more |= value.starts_with('!') || modifiers.iter().any(|m| CONDITIONS.iter().any(|c| m.starts_with(c)));
                contents.push((bytes, modifiers.contains(&"nocase")));
            }
            "nocase" => contents.last_mut().ok_or("nocase before any content")?.1 = true,
            _ => more |= CONDITIONS.contains(&name),
        }
    }
    let sid = sid.ok_or("no sid")?;
    let [(bytes, nocase)] = &mut contents[..] else { return Ok(None) };
    if more || bytes.len() < PATTERN_BYTES_MIN {
        return Ok(None);
    }
    if *nocase {
        bytes.make_ascii_lowercase();
    }
    Ok(Some(Pattern { sid, bytes: std::mem::take(bytes), nocase: *nocase }))
}

/// Splits at semicolons outside of quotes; a backslash takes the next character's meaning away.
fn options(text: &str) -> Result<Vec<&str>, String> {
    let (mut parts, mut start, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            ';' if !quoted => {
                parts.push(text[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    if quoted { Err("a quote is not closed".into()) } else { Ok(parts) }
}

/// The bytes of `"GET|20|/\""`, and what follows the closing quote.
fn content(value: &str) -> Result<(Vec<u8>, &str), String> {
    let text = value.strip_prefix('"').ok_or_else(|| format!("the content {value:?} is not quoted"))?;
    let (mut bytes, mut hex, mut escaped) = (Vec::new(), None::<Vec<u8>>, false);
    for (at, &b) in text.as_bytes().iter().enumerate() {
        match (&mut hex, b) {
            (None, _) if escaped => {
                bytes.push(b);
                escaped = false;
            }
            (None, b'\\') => escaped = true,
            (None, b'"') => return Ok((bytes, text[at + 1..].trim_start_matches([',', ' ']))),
            (None, b'|') => hex = Some(Vec::new()),
            (None, _) => bytes.push(b),
            (Some(digits), b'|') => {
                bytes.extend(hex_bytes(digits)?);
                hex = None;
            }
            (Some(digits), _) => digits.push(b),
        }
    }
    Err("a content has no closing quote".into())
}

fn hex_bytes(text: &[u8]) -> Result<Vec<u8>, String> {
    let digits: Vec<u8> = text.iter().copied().filter(|b| !b.is_ascii_whitespace()).collect();
    let value = |d: u8| (d as char).to_digit(16).map(|v| v as u8);
    let pair = |p: &[u8]| Some(value(p[0])? << 4 | value(*p.get(1)?)?);
    digits.chunks(2).map(|p| pair(p).ok_or_else(|| format!("{:?} is not hexadecimal", String::from_utf8_lossy(text)))).collect()
}

/// In an entry of a row: the next node has no row, or it has output.
const SLOW: u32 = 1 << 31;
/// Nodes nearest to the root have a full row each: most bytes of real traffic are spent there.
const ROWS_MAX: usize = 4096;
/// Next nodes have 24 bits beside their byte.
const NODES_MAX: usize = 1 << 24;

struct Node {
    children: BTreeMap<u8, u32>,
    fail: u32,
    sids: Vec<u32>,
}

/// Both automata of some patterns, as the IDS takes them for its configuration.
pub fn compile(patterns: &[Pattern]) -> Result<Vec<u8>, String> {
    let mut words = vec![u32::from_le_bytes(*b"PIDS"), 2];
    let mut bodies = Vec::new();
    for nocase in [false, true] {
        let body = automaton(patterns.iter().filter(|p| p.nocase == nocase))?;
        words.extend(body.sizes);
        bodies.push(body.words);
    }
    words.extend(bodies.into_iter().flatten());
    Ok(words.into_iter().flat_map(u32::to_le_bytes).collect())
}

struct Body {
    sizes: [u32; 4],
    words: Vec<u32>,
}

fn automaton<'a>(patterns: impl Iterator<Item = &'a Pattern>) -> Result<Body, String> {
    let mut nodes = breadth_first(&trie(patterns)?);
    let rows = link(&mut nodes);
    Ok(flatten(&nodes, &rows))
}

fn trie<'a>(patterns: impl Iterator<Item = &'a Pattern>) -> Result<Vec<Node>, String> {
    let new = || Node { children: BTreeMap::new(), fail: 0, sids: Vec::new() };
    let mut nodes = vec![new()];
    for pattern in patterns {
        let mut at = 0;
        for &byte in &pattern.bytes {
            at = match nodes[at].children.get(&byte) {
                Some(&child) => child as usize,
                None if nodes.len() == NODES_MAX => return Err(format!("more than {NODES_MAX} bytes of contents")),
                None => {
                    let child = nodes.len();
                    nodes[at].children.insert(byte, child as u32);
                    nodes.push(new());
                    child
                }
            };
        }
        nodes[at].sids.push(pattern.sid);
    }
    Ok(nodes)
}

/// The same nodes, numbered in breadth-first order.
fn breadth_first(trie: &[Node]) -> Vec<Node> {
    let (mut order, mut queue) = (Vec::with_capacity(trie.len()), VecDeque::from([0u32]));
    while let Some(at) = queue.pop_front() {
        order.push(at);
        queue.extend(trie[at as usize].children.values());
    }
    let mut number = vec![0u32; trie.len()];
    order.iter().enumerate().for_each(|(n, &old)| number[old as usize] = n as u32);
    let renumbered = |&old: &u32| {
        let node = &trie[old as usize];
        let children = node.children.iter().map(|(&byte, &child)| (byte, number[child as usize])).collect();
        Node { children, fail: 0, sids: node.sids.clone() }
    };
    order.iter().map(renumbered).collect()
}

/// Sets every node's fail node and the outputs that it inherits, and returns the full rows of the first nodes. The nodes
/// are in breadth-first order, so a fail node is always before its node.
fn link(nodes: &mut [Node]) -> Vec<[u32; 256]> {
    let mut rows: Vec<[u32; 256]> = Vec::new();
    for at in 0..nodes.len() {
        let fail = nodes[at].fail;
        let children: Vec<(u8, u32)> = nodes[at].children.iter().map(|(&b, &c)| (b, c)).collect();
        for &(byte, child) in &children {
            let target = if at == 0 { 0 } else { walk(nodes, &rows, fail, byte) };
            nodes[child as usize].fail = target;
            let inherited = nodes[target as usize].sids.clone();
            nodes[child as usize].sids.extend(inherited);
        }
        if at < ROWS_MAX {
            let mut row = if at == 0 { [0; 256] } else { rows[fail as usize] };
            children.iter().for_each(|&(byte, child)| row[byte as usize] = child);
            rows.push(row);
        }
    }
    rows
}

fn walk(nodes: &[Node], rows: &[[u32; 256]], mut at: u32, byte: u8) -> u32 {
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
        outputs.extend(&node.sids);
        records.extend([first, edges.len() as u32 - first, node.fail, output, node.sids.len() as u32]);
    }
    let sizes = [nodes.len() as u32, rows.len() as u32, edges.len() as u32, outputs.len() as u32];
    let slow = |next: u32| next as usize >= rows.len() || !nodes[next as usize].sids.is_empty();
    let mut words = records;
    words.extend(rows.iter().flatten().map(|&next| if slow(next) { next | SLOW } else { next }));
    words.extend(edges);
    words.extend(outputs);
    Body { sizes, words }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_rule_gives_its_content() {
        let text = r#"
# alert tcp any any -> any any (content:"commented out"; sid:1;)
alert tcp $HOME_NET any -> any $HTTP_PORTS (msg:"semi\;colon"; content:"|0d 0A|Fast|3b|"; nocase; fast_pattern; sid:2; rev:3;)
alert udp any any -> any 53 (content:"quo\"te\\"; sid:3;)
alert tcp any any -> any any (content:"abc"; sid:4;)
alert tcp any any -> any any (content:!"negated"; sid:5;)
alert tcp any any -> any any (content:"several"; content:"of them"; sid:6;)
alert tcp any any -> any any (content:"early"; depth:5; sid:7;)
"#;
        let rules = parse(text, "test.rules").unwrap();
        let pattern = |sid, bytes: &[u8], nocase| Pattern { sid, bytes: bytes.to_vec(), nocase };
        assert_eq!(rules.patterns, [pattern(2, b"\r\nfast;", true), pattern(3, b"quo\"te\\", false)]);
        assert_eq!(rules.others, 4);
    }

    #[test]
    fn an_error_names_its_line() {
        let error = parse("\nalert tcp any any -> any any (content:\"|zz|\"; sid:1;)", "x.rules").unwrap_err();
        assert_eq!(error.to_string(), "x.rules:2: \"zz\" is not hexadecimal");
    }

    fn find(patterns: &[Pattern], text: &[u8]) -> BTreeSet<u32> {
        let mut found = BTreeSet::new();
        for nocase in [false, true] {
            let mut nodes = breadth_first(&trie(patterns.iter().filter(|p| p.nocase == nocase)).unwrap());
            let rows = link(&mut nodes);
            let mut at = 0;
            for &byte in text {
                at = walk(&nodes, &rows[..rows.len().min(2)], at, if nocase { byte.to_ascii_lowercase() } else { byte });
                found.extend(&nodes[at as usize].sids);
            }
        }
        found
    }

    proptest! {
        /// The oracle is the aho-corasick crate.
        #[test]
        fn it_finds_what_another_implementation_finds(
            words in proptest::collection::vec((proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'B'), Just(b'b')], 1..6), any::<bool>()), 1..12),
            text in proptest::collection::vec(prop_oneof![Just(b'a'), Just(b'A'), Just(b'B'), Just(b'b')], 0..80),
        ) {
            let patterns: Vec<Pattern> = words.iter().enumerate().map(|(n, (bytes, nocase))| {
                let bytes = if *nocase { bytes.to_ascii_lowercase() } else { bytes.clone() };
                Pattern { sid: n as u32, bytes, nocase: *nocase }
            }).collect();
            let mut expected = BTreeSet::new();
            for pattern in &patterns {
                let one = aho_corasick::AhoCorasick::builder().ascii_case_insensitive(pattern.nocase).build([&pattern.bytes]).unwrap();
                if one.is_match(&text) {
                    expected.insert(pattern.sid);
                }
            }
            prop_assert_eq!(find(&patterns, &text), expected);
        }

        #[test]
        fn no_file_panics(text in r#"(alert |content:|"|\||\\|;|\(|\)|sid:|[0-9a-f]{1,3}|nocase;|fast_pattern;|!|é|,|\n){0,30}"#) {
            let _ = parse(&text, "fuzz");
        }
    }
}
