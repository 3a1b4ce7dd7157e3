//! Heads of rules against plain models of them.

use super::*;
use proptest::prelude::*;

/// A port expression: its text, and a plain model of it.
#[derive(Clone, Debug)]
enum Said {
    Any,
    Range(u16, u16),
    Not(Box<Said>),
    List(Vec<Said>),
}

impl Said {
    fn text(&self) -> String {
        match self {
            Said::Any => "any".into(),
            Said::Range(first, last) if first == last => first.to_string(),
            Said::Range(first, u16::MAX) => format!("{first}:"),
            Said::Range(first, last) => format!("{first}:{last}"),
            Said::Not(said) => format!("!{}", said.text()),
            Said::List(list) => {
                format!("[{}]", list.iter().map(Said::text).collect::<Vec<_>>().join(", "))
            }
        }
    }

    /// A list holds a port if one part has it and no negation excludes it. A list of negations
    /// alone holds all other ports.
    fn has(&self, port: u16) -> bool {
        match self {
            Said::Any => true,
            Said::Range(first, last) => (*first..=*last).contains(&port),
            Said::Not(said) => !said.has(port),
            Said::List(list) => {
                let excluded =
                    list.iter().any(|said| matches!(said, Said::Not(said) if said.has(port)));
                let mut with = list.iter().filter(|said| !matches!(said, Said::Not(_))).peekable();
                !excluded && (with.peek().is_none() || with.any(|said| said.has(port)))
            }
        }
    }
}

fn said() -> impl Strategy<Value = Said> {
    let range = (0..40u16, 0..20u16).prop_map(|(first, more)| {
        Said::Range(first, if more == 19 { u16::MAX } else { first + more })
    });
    prop_oneof![1 => Just(Said::Any), 6 => range].prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            inner.clone().prop_map(|said| Said::Not(Box::new(said))),
            proptest::collection::vec(inner, 1..4).prop_map(Said::List),
        ]
    })
}

proptest! {
    #[test]
    fn ports_are_those_of_a_plain_model(said in said()) {
        let ports: Ports = set(&said.text(), &Variables::default(), 0).unwrap();
        for port in (0..70).chain([65534, 65535]) {
            prop_assert_eq!(
                ports.has(port.into()),
                said.has(port),
                "{} of {}",
                port,
                said.text()
            );
        }
    }

    #[test]
    fn addresses_are_those_of_a_plain_model(
        networks in
            proptest::collection::vec((any::<[u8; 4]>(), 0..=32u32, any::<bool>()), 1..5),
        near: [u8; 4],
        pick: u8,
    ) {
        let text: Vec<String> = networks
            .iter()
            .map(|([a, b, c, d], bits, not)| {
                format!("{}{a}.{b}.{c}.{d}/{bits}", if *not { "!" } else { "" })
            })
            .collect();
        let addresses: Addresses =
            set(&format!("[{}]", text.join(",")), &Variables::default(), 0).unwrap();
        // Choose an address near a network: it tests more than a random one.
        let (base, bits, _) = networks[usize::from(pick) % networks.len()];
        let address =
            u32::from_be_bytes(base) ^ (u32::from_be_bytes(near) >> bits.min(31) >> (pick % 3));
        let within = |(network, bits, _): &&([u8; 4], u32, bool)| {
            (u32::from_be_bytes(*network) ^ address).checked_shr(32 - bits).unwrap_or(0) == 0
        };
        let (not, with): (Vec<_>, Vec<_>) = networks.iter().partition(|(_, _, not)| *not);
        let expected = (with.is_empty() || with.iter().any(within)) && !not.iter().any(within);
        prop_assert_eq!(addresses.has(std::net::Ipv4Addr::from_bits(address).into()), expected);
        prop_assert_eq!(addresses.has("2001:db8::1".parse().unwrap()), with.is_empty());
    }
}

#[test]
fn variables_lead_to_addresses() {
    let mut variables = Variables::default();
    let has = |variables: &Variables, text: &str, address: &str| {
        set::<Addresses>(text, variables, 0).unwrap().has(address.parse().unwrap())
    };
    assert_eq!(["10.9.8.7", "8.8.8.8"].map(|a| has(&variables, "$HOME_NET", a)), [true, false]);
    assert_eq!(
        ["10.9.8.7", "8.8.8.8", "2001:db8::1"].map(|a| has(&variables, "$EXTERNAL_NET", a)),
        [false, true, true]
    );
    assert_eq!(
        ["8.8.8.8", "8.8.4.4"].map(|a| has(&variables, "[!8.8.8.0/24, $EXTERNAL_NET]", a)),
        [false, true]
    );
    variables.set("HOME_NET", "[2001:db8::/32,192.0.2.0/24]");
    assert_eq!(
        ["10.9.8.7", "2001:db8::1"].map(|a| has(&variables, "!$EXTERNAL_NET", a)),
        [false, true]
    );
}
