//! Snort and Suricata rules for the IDS. Turns rule files into the configuration of
//! `function/functions/ids`.
//!
//! A rule is in force only if every part is supported. The supported parts are `alert`, `tcp`,
//! `udp`, `ip` (which means both) and `nocase`. `flow` may have `established` and a direction. The
//! rule needs exactly one `content`, not negated, of at least [`PATTERN_BYTES_MIN`] bytes.
//!
//! A rule with any other condition (`pcre`, positions, HTTP buffers, …) is left out, counted and
//! named. Half a rule would give wrong alerts.

mod automaton;
mod head;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use automaton::compile;
use head::Refusal;
pub use head::{Addresses, Flow, Head, Ports, Protocol, Ranges, Variables};

/// A rule that is in force.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    /// Id of the rule.
    pub sid: u32,
    /// The bytes to find, in lower case if `nocase`.
    pub bytes: Vec<u8>,
    /// Whether ASCII case is ignored.
    pub nocase: bool,
    /// Condition on the packet's protocol, addresses, ports and direction.
    pub head: Head,
}

/// Reason why a line is not a rule.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {reason}")]
pub struct RuleError {
    /// The file, as given.
    pub file: String,
    /// Line number, from 1.
    pub line: usize,
    /// The error.
    pub reason: String,
}

/// Contents of a rule file.
#[derive(Debug, Default)]
pub struct Rules {
    /// The rules in force. Every part of them is supported.
    pub patterns: Vec<Pattern>,
    /// The other rules: line, sid, and the first unsupported part.
    pub others: Vec<(usize, u32, String)>,
}

/// The number of rules in force, and reasons for leaving out the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Force {
    /// Rules in force.
    pub in_force: usize,
    /// Rules read.
    pub read: usize,
    /// Number of left-out rules per unsupported part. Each rule counts once, for its first such
    /// part.
    pub left_out: BTreeMap<String, usize>,
}

impl Force {
    /// Adds the counts of a file.
    pub fn add(&mut self, rules: &Rules) {
        self.in_force += rules.patterns.len();
        self.read += rules.patterns.len() + rules.others.len();
        for (_, _, reason) in &rules.others {
            *self.left_out.entry(reason.clone()).or_default() += 1;
        }
    }
}

/// Maximum reasons to list. The others are summed.
const REASONS_LISTED: usize = 8;

impl std::fmt::Display for Force {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} of {} rules in force", self.in_force, self.read)?;
        let mut reasons: Vec<(&String, &usize)> = self.left_out.iter().collect();
        reasons.sort_by_key(|(reason, count)| (std::cmp::Reverse(**count), reason.as_str()));
        let rest: usize = reasons.iter().skip(REASONS_LISTED).map(|(_, count)| **count).sum();
        let listed: Vec<String> = reasons
            .iter()
            .take(REASONS_LISTED)
            .map(|(reason, count)| format!("{count} have {reason}"))
            .collect();
        match (listed.is_empty(), rest) {
            (true, _) => Ok(()),
            (false, 0) => write!(f, "; of the others {}", listed.join(", ")),
            (false, _) => {
                write!(f, "; of the others {}, {rest} have something else", listed.join(", "))
            }
        }
    }
}

/// Minimum bytes of a content. Shorter contents occur in every other packet.
pub const PATTERN_BYTES_MIN: usize = 4;

/// Reads the rules of a file. Skips commented-out rules.
pub fn parse(text: &str, file: &str, variables: &Variables) -> Result<Rules, RuleError> {
    let mut rules = Rules::default();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let error = |reason: String| RuleError { file: file.to_owned(), line: n + 1, reason };
        match rule(line, variables).map_err(error)? {
            Read::InForce(pattern) => rules.patterns.push(*pattern),
            Read::Other(sid, reason) => rules.others.push((n + 1, sid, reason)),
        }
    }
    Ok(rules)
}

enum Read {
    InForce(Box<Pattern>),
    Other(u32, String),
}

/// Options that set no condition on packets.
const REMARKS: [&str; 11] = [
    "msg",
    "rev",
    "gid",
    "classtype",
    "priority",
    "reference",
    "metadata",
    "fast_pattern",
    "rawbytes",
    "sid",
    "target",
];

/// The options of a rule.
#[derive(Default)]
struct Options {
    sid: Option<u32>,
    contents: Vec<(Vec<u8>, bool)>,
    flow: Flow,
    /// The first unsupported part.
    strange: Option<String>,
}

impl Options {
    fn read(inside: &str) -> Result<Options, String> {
        let mut read = Options::default();
        for option in options(inside)? {
            let (name, value) =
                option.split_once(':').map_or((option, ""), |(n, v)| (n.trim(), v.trim()));
            match name {
                "sid" => {
                    read.sid = Some(
                        value
                            .parse::<u32>()
                            .map_err(|_| format!("sid {value:?} is not a number"))?,
                    )
                }
                "content" => read.content(value)?,
                "nocase" => read.contents.last_mut().ok_or("nocase before any content")?.1 = true,
                "flow" => match Flow::read(value) {
                    Ok(flow) => read.flow = flow,
                    Err(part) => read.is_strange(part),
                },
                _ if REMARKS.contains(&name) => {}
                _ => read.is_strange(format!("option {name}")),
            }
        }
        Ok(read)
    }

    fn content(&mut self, value: &str) -> Result<(), String> {
        let (bytes, rest) = content(value.trim_start_matches('!').trim_start())?;
        let modifiers: Vec<&str> =
            rest.split(',').map(str::trim).filter(|modifier| !modifier.is_empty()).collect();
        if value.starts_with('!') {
            self.is_strange("a negated content".into());
        }
        for modifier in &modifiers {
            let name = modifier.split_whitespace().next().unwrap_or_default();
            if !["nocase", "fast_pattern", "rawbytes"].contains(&name) {
                self.is_strange(format!("option {name}"));
            }
        }
        self.contents.push((bytes, modifiers.contains(&"nocase")));
        Ok(())
    }

    fn is_strange(&mut self, part: String) {
        self.strange.get_or_insert(part);
    }
}

fn rule(line: &str, variables: &Variables) -> Result<Read, String> {
    let open =
        line.find('(').ok_or("no options: a rule is `action protocol from -> to (options)`")?;
    let inside =
        line[open + 1..].trim_end().strip_suffix(')').ok_or("the options do not end with )")?;
    let mut options = Options::read(inside)?;
    let sid = options.sid.ok_or("no sid")?;
    let head = match head::read(&line[..open], variables) {
        Ok(head) => Head { flow: options.flow, ..head },
        Err(Refusal::Wrong(reason)) => return Err(reason),
        Err(Refusal::NotUnderstood(part)) => return Ok(Read::Other(sid, part)),
    };
    if let Some(part) = options.strange {
        return Ok(Read::Other(sid, part));
    }
    match &mut options.contents[..] {
        [] => Ok(Read::Other(sid, "no content".into())),
        [(bytes, _)] if bytes.len() < PATTERN_BYTES_MIN => {
            Ok(Read::Other(sid, format!("a content of less than {PATTERN_BYTES_MIN} bytes")))
        }
        [(bytes, nocase)] => {
            if *nocase {
                bytes.make_ascii_lowercase();
            }
            Ok(Read::InForce(Box::new(Pattern {
                sid,
                bytes: std::mem::take(bytes),
                nocase: *nocase,
                head,
            })))
        }
        _ => Ok(Read::Other(sid, "several contents".into())),
    }
}

/// Splits at semicolons outside of quotes. A backslash escapes the next character.
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
    match text[start..].trim() {
        _ if quoted => Err("a quote is not closed".into()),
        "" => Ok(parts),
        rest => Err(format!("the option {rest:?} does not end with ;")),
    }
}

/// Returns the bytes of a content such as `"GET|20|/\""`, and the text after the closing quote.
fn content(value: &str) -> Result<(Vec<u8>, &str), String> {
    let text =
        value.strip_prefix('"').ok_or_else(|| format!("the content {value:?} is not quoted"))?;
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
    digits
        .chunks(2)
        .map(|p| {
            pair(p).ok_or_else(|| format!("{:?} is not hexadecimal", String::from_utf8_lossy(text)))
        })
        .collect()
}

#[cfg(test)]
mod tests;
