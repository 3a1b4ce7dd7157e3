//! The head of a rule and its `flow` option: they select the packets to which the rule applies.
//!
//! Addresses and ports become sets of ranges, with variables, lists and negation resolved. The
//! function that matches packets therefore needs none of these.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// The protocol that a rule requires of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP or UDP: the protocols with searched contents.
    Ip,
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Sorted, inclusive ranges of numbers that neither overlap nor touch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranges(pub(super) Vec<(u128, u128)>);

impl Ranges {
    /// Returns the union of some ranges.
    fn of(mut ranges: Vec<(u128, u128)>) -> Ranges {
        ranges.sort_unstable();
        let mut joined: Vec<(u128, u128)> = Vec::new();
        for (first, last) in ranges {
            match joined.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => {
                    before.1 = before.1.max(last)
                }
                _ => joined.push((first, last)),
            }
        }
        Ranges(joined)
    }

    fn or(mut self, other: Ranges) -> Ranges {
        self.0.extend(other.0);
        Ranges::of(self.0)
    }

    /// Returns the numbers up to `most` that are not in the set.
    fn not(&self, most: u128) -> Ranges {
        let (mut free, mut next) = (Vec::new(), Some(0));
        for &(first, last) in &self.0 {
            if let Some(next) = next.filter(|&next| next < first) {
                free.push((next, first - 1));
            }
            next = last.checked_add(1);
        }
        free.extend(next.filter(|&next| next <= most).map(|next| (next, most)));
        Ranges(free)
    }

    /// Returns the numbers up to `most` that are in this set and not in `other`.
    fn minus(&self, other: &Ranges, most: u128) -> Ranges {
        self.not(most).or(other.clone()).not(most)
    }

    /// Reports whether a number is in the set.
    pub fn has(&self, number: u128) -> bool {
        self.0.iter().any(|&(first, last)| (first..=last).contains(&number))
    }
}

/// A set for one end of a packet: addresses or ports.
trait Kind: Sized {
    const WHAT: &'static str;
    fn all() -> Self;
    fn none() -> Self;
    fn one(text: &str) -> Option<Self>;
    fn or(self, other: Self) -> Self;
    fn without(self, other: Self) -> Self;
    fn variables(variables: &Variables) -> &BTreeMap<String, String>;
}

/// Addresses of both versions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Addresses {
    /// 32 bits each.
    pub v4: Ranges,
    /// 128 bits each.
    pub v6: Ranges,
}

const V4_MOST: u128 = u32::MAX as u128;
const PORT_MOST: u128 = u16::MAX as u128;

impl Addresses {
    /// Reports whether an address is in the set.
    pub fn has(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.has(address.to_bits().into()),
            IpAddr::V6(address) => self.v6.has(address.to_bits()),
        }
    }
}

impl Kind for Addresses {
    const WHAT: &'static str = "an address";

    fn all() -> Self {
        Addresses { v4: Ranges(vec![(0, V4_MOST)]), v6: Ranges(vec![(0, u128::MAX)]) }
    }

    fn none() -> Self {
        Addresses { v4: Ranges(vec![]), v6: Ranges(vec![]) }
    }

    fn one(text: &str) -> Option<Self> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let (width, number) = match address {
            IpAddr::V4(address) => (32, u128::from(address.to_bits())),
            IpAddr::V6(address) => (128, address.to_bits()),
        };
        let bits =
            bits.map_or(Some(width), |bits| bits.parse().ok().filter(|&bits: &u32| bits <= width))?;
        let most = if address.is_ipv4() { V4_MOST } else { u128::MAX };
        let host = if bits == 0 { most } else { most >> bits };
        let ranges = Ranges(vec![(number & !host, number | host)]);
        let none = Addresses::none();
        Some(if address.is_ipv4() {
            Addresses { v4: ranges, ..none }
        } else {
            Addresses { v6: ranges, ..none }
        })
    }

    fn or(self, other: Self) -> Self {
        Addresses { v4: self.v4.or(other.v4), v6: self.v6.or(other.v6) }
    }

    fn without(self, other: Self) -> Self {
        Addresses { v4: self.v4.minus(&other.v4, V4_MOST), v6: self.v6.minus(&other.v6, u128::MAX) }
    }

    fn variables(variables: &Variables) -> &BTreeMap<String, String> {
        &variables.0
    }
}

/// Ports.
pub type Ports = Ranges;

impl Kind for Ranges {
    const WHAT: &'static str = "a port";

    fn all() -> Self {
        Ranges(vec![(0, PORT_MOST)])
    }

    fn none() -> Self {
        Ranges(vec![])
    }

    fn one(text: &str) -> Option<Self> {
        let number = |text: &str, otherwise: u16| {
            if text.is_empty() { Some(otherwise) } else { text.trim().parse().ok() }
        };
        let (first, last) = match text.split_once(':') {
            Some((first, last)) if first.len() + last.len() > 0 => {
                (number(first, 0)?, number(last, u16::MAX)?)
            }
            _ => (text.parse().ok()?, text.parse().ok()?),
        };
        (first <= last).then(|| Ranges(vec![(first.into(), last.into())]))
    }

    fn or(self, other: Self) -> Self {
        Ranges::or(self, other)
    }

    fn without(self, other: Self) -> Self {
        self.minus(&other, PORT_MOST)
    }

    fn variables(variables: &Variables) -> &BTreeMap<String, String> {
        &variables.0
    }
}

/// The values of `$NAME` in rules.
#[derive(Clone, Debug)]
pub struct Variables(BTreeMap<String, String>);

/// As in Suricata's configuration.
const DEFAULTS: [(&str, &str); 17] = [
    ("HOME_NET", "[192.168.0.0/16,10.0.0.0/8,172.16.0.0/12]"),
    ("EXTERNAL_NET", "!$HOME_NET"),
    ("HTTP_SERVERS", "$HOME_NET"),
    ("SMTP_SERVERS", "$HOME_NET"),
    ("SQL_SERVERS", "$HOME_NET"),
    ("DNS_SERVERS", "$HOME_NET"),
    ("TELNET_SERVERS", "$HOME_NET"),
    ("AIM_SERVERS", "$EXTERNAL_NET"),
    ("HTTP_PORTS", "80"),
    ("SHELLCODE_PORTS", "!80"),
    ("ORACLE_PORTS", "1521"),
    ("SSH_PORTS", "22"),
    ("DNP3_PORTS", "20000"),
    ("MODBUS_PORTS", "502"),
    ("FILE_DATA_PORTS", "[$HTTP_PORTS,110,143]"),
    ("FTP_PORTS", "21"),
    ("SIP_PORTS", "[5060,5061]"),
];

impl Default for Variables {
    fn default() -> Variables {
        Variables(DEFAULTS.map(|(name, value)| (name.to_owned(), value.to_owned())).into())
    }
}

impl Variables {
    /// Sets a variable, or makes one.
    pub fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }
}

/// The deepest nesting of lists and variables.
const DEPTH_MAX: u32 = 16;

fn set<K: Kind>(text: &str, variables: &Variables, depth: u32) -> Result<K, String> {
    let text = text.trim();
    if depth == DEPTH_MAX {
        return Err(format!("{text:?} leads to itself"));
    }
    if let Some(rest) = text.strip_prefix('!') {
        return Ok(K::all().without(set(rest, variables, depth + 1)?));
    }
    if let Some(name) = text.strip_prefix('$') {
        let value = K::variables(variables).get(name).ok_or_else(|| {
            format!("${name} has no value: --rules-var {name}=VALUE gives it one")
        })?;
        return set(value, variables, depth + 1);
    }
    let Some(list) = text.strip_prefix('[') else {
        return if text == "any" {
            Ok(K::all())
        } else {
            K::one(text).ok_or_else(|| format!("{text:?} is not {}", K::WHAT))
        };
    };
    let list = list.strip_suffix(']').ok_or_else(|| format!("{text:?} does not end with ]"))?;
    let (mut with, mut without) = (None, K::none());
    for item in items(list) {
        match item.trim().strip_prefix('!') {
            Some(negated) => without = without.or(set(negated, variables, depth + 1)?),
            None => with = Some(with.unwrap_or_else(K::none).or(set(item, variables, depth + 1)?)),
        }
    }
    Ok(with.unwrap_or_else(K::all).without(without))
}

/// Splits at commas outside brackets.
fn items(list: &str) -> Vec<&str> {
    let (mut items, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                items.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(&list[start..]);
    items
}

/// The packets to which a rule applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head {
    /// The protocol.
    pub protocol: Protocol,
    /// The source.
    pub from: (Addresses, Ports),
    /// The destination.
    pub to: (Addresses, Ports),
    /// Source and destination may be swapped.
    pub both_ways: bool,
    /// The requirements of the option `flow`.
    pub flow: Flow,
}

impl Head {
    /// Returns the head that matches every searched packet.
    pub fn any() -> Head {
        let every = || (Addresses::all(), Ports::all());
        Head {
            protocol: Protocol::Ip,
            from: every(),
            to: every(),
            both_ways: false,
            flow: Flow::default(),
        }
    }
}

/// The requirements of the option `flow`; by default, there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// The flow has packets in both directions.
    pub established: bool,
    /// The packet goes to the server.
    pub to_server: bool,
    /// The packet goes to the client.
    pub to_client: bool,
}

impl Flow {
    /// Reads the option's value; the error is the unsupported part.
    pub(super) fn read(value: &str) -> Result<Flow, String> {
        let mut flow = Flow::default();
        for part in value.split(',').map(str::trim) {
            match part {
                "established" => flow.established = true,
                "to_server" | "from_client" => flow.to_server = true,
                "to_client" | "from_server" => flow.to_client = true,
                "stateless" => {}
                _ => return Err(format!("flow {part}")),
            }
        }
        if flow.to_server && flow.to_client {
            Err("flow in both directions".into())
        } else {
            Ok(flow)
        }
    }
}

/// The reason for refusing a head.
pub(super) enum Refusal {
    /// It is malformed.
    Wrong(String),
    /// It requires an unsupported feature.
    NotUnderstood(String),
}

/// Reads `action protocol from ports -> to ports`.
pub(super) fn read(text: &str, variables: &Variables) -> Result<Head, Refusal> {
    let parts = words(text);
    let [action, protocol, from, from_ports, arrow, to, to_ports] = parts[..] else {
        return Err(Refusal::Wrong(format!(
            "{:?} is not `action protocol from ports -> to ports`",
            text.trim()
        )));
    };
    let both_ways = match arrow {
        "->" => false,
        "<>" => true,
        _ => return Err(Refusal::Wrong(format!("{arrow:?} is neither -> nor <>"))),
    };
    let addresses = |text| set::<Addresses>(text, variables, 0).map_err(Refusal::Wrong);
    let ports = |text| set::<Ports>(text, variables, 0).map_err(Refusal::Wrong);
    let (from, to) = ((addresses(from)?, ports(from_ports)?), (addresses(to)?, ports(to_ports)?));
    if action != "alert" {
        return Err(Refusal::NotUnderstood(format!("action {action}")));
    }
    let protocol = match protocol {
        "ip" => Protocol::Ip,
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return Err(Refusal::NotUnderstood(format!("protocol {protocol}"))),
    };
    Ok(Head { protocol, from, to, both_ways, flow: Flow::default() })
}

/// Splits at spaces outside brackets.
fn words(text: &str) -> Vec<&str> {
    let (mut words, mut start, mut depth) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            c if c.is_whitespace() && depth <= 0 => {
                words.push(&text[start..at]);
                start = at + c.len_utf8();
            }
            _ => {}
        }
    }
    words.push(&text[start..]);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests;
