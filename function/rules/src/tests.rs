//! Rules against their description, and texts that are no rules.

use super::*;
use proptest::prelude::*;

fn read(text: &str) -> Result<Rules, RuleError> {
    parse(text, "x.rules", &Variables::default())
}

#[test]
fn a_rule_gives_its_content() {
    let text = concat!(
        r#"
# alert tcp any any -> any any (content:"commented out"; sid:1;)
alert tcp any any -> any any (msg:"semi\;colon"; content:"|0d 0A|Fast|3b|"; "#,
        r#"nocase; fast_pattern; sid:2; rev:3;)
alert ip any any -> any any (content:"quo\"te\\"; sid:3;)
"#
    );
    let rules = read(text).unwrap();
    let pattern = |sid, bytes: &[u8], nocase, protocol| Pattern {
        sid,
        bytes: bytes.to_vec(),
        nocase,
        head: Head { protocol, ..Head::any() },
    };
    assert_eq!(
        rules.patterns,
        [
            pattern(2, b"\r\nfast;", true, Protocol::Tcp),
            pattern(3, b"quo\"te\\", false, Protocol::Ip)
        ]
    );
    assert!(rules.others.is_empty());
}

#[test]
fn what_is_not_understood_is_named() {
    let cases = [
        (
            r#"alert tcp any any -> any any (content:"abc"; sid:4;)"#,
            "a content of less than 4 bytes",
        ),
        (r#"alert tcp any any -> any any (content:!"negated"; sid:4;)"#, "a negated content"),
        (
            r#"alert tcp any any -> any any (content:"several"; content:"of them"; sid:4;)"#,
            "several contents",
        ),
        (
            r#"alert tcp any any -> any any (content:"early"; depth:5; pcre:"/x/"; sid:4;)"#,
            "option depth",
        ),
        (r#"alert tcp any any -> any any (content:"early", offset 5; sid:4;)"#, "option offset"),
        (
            r#"alert tcp any any -> any any (content:"in a buffer"; http_uri; sid:4;)"#,
            "option http_uri",
        ),
        (
            concat!(
                r#"alert tcp any any -> any any "#,
                r#"(flow:to_server,only_stream; content:"flow"; sid:4;)"#
            ),
            "flow only_stream",
        ),
        (r#"alert tcp any any -> any any (msg:"nothing to look for"; sid:4;)"#, "no content"),
        (r#"alert http any any -> any any (content:"some of http"; sid:4;)"#, "protocol http"),
        (r#"drop tcp any any -> any any (content:"some content"; sid:4;)"#, "action drop"),
    ];
    let mut force = Force::default();
    for (text, part) in cases {
        let rules = read(text).unwrap();
        assert_eq!(
            (rules.patterns.len(), &rules.others),
            (0, &vec![(1, 4, part.to_owned())]),
            "{text}"
        );
        force.add(&rules);
    }
    force.add(
        &read("alert tcp any any -> any any (content:\"content\"; sid:1;)\n".repeat(3).as_str())
            .unwrap(),
    );
    force.add(&read(cases[3].0).unwrap());
    let said = force.to_string();
    assert!(
        said.starts_with(
            "3 of 14 rules in force; of the others 2 have option depth, 1 have a content"
        ),
        "{said}"
    );
    assert!(said.ends_with("2 have something else"), "{said}");
}

#[test]
fn an_error_names_its_line() {
    for (rule, reason) in [
        (r#"alert tcp any any -> any any (content:"|zz|"; sid:1;)"#, r#""zz" is not hexadecimal"#),
        (
            r#"alert tcp any -> any any (content:"some"; sid:1;)"#,
            r#""alert tcp any -> any any" is not `action protocol from ports -> to ports`"#,
        ),
        (
            r#"alert tcp any any <- any any (content:"some"; sid:1;)"#,
            r#""<-" is neither -> nor <>"#,
        ),
        (
            r#"alert tcp $NOWHERE any -> any any (content:"some"; sid:1;)"#,
            "$NOWHERE has no value: --rules-var NOWHERE=VALUE gives it one",
        ),
        (
            r#"alert tcp 10.0.0.0/33 any -> any any (content:"some"; sid:1;)"#,
            r#""10.0.0.0/33" is not an address"#,
        ),
        (r#"alert tcp any 65536 -> any any (content:"some"; sid:1;)"#, r#""65536" is not a port"#),
        (r#"alert tcp any 9:8 -> any any (content:"some"; sid:1;)"#, r#""9:8" is not a port"#),
        (
            r#"alert tcp any [80 -> any any (content:"some"; sid:1;)"#,
            r#""alert tcp any [80 -> any any" is not `action protocol from ports -> to ports`"#,
        ),
    ] {
        assert_eq!(
            read(&format!("\n{rule}")).unwrap_err().to_string(),
            format!("x.rules:2: {reason}")
        );
    }
    let mut variables = Variables::default();
    variables.set("LOOP", "[$LOOP]");
    let looped =
        parse(r#"alert tcp $LOOP any -> any any (content:"some"; sid:1;)"#, "x.rules", &variables);
    assert!(looped.unwrap_err().reason.ends_with("leads to itself"));
}

/// An option without its semicolon is an error. It would be a condition that no packet is
/// tested for.
#[test]
fn the_last_option_ends_as_the_others_do() {
    let rule =
        |end: &str| read(&format!("alert tcp any any -> any any (content:\"some\"; sid:1;{end})"));
    for end in ["", " ", "  rev:1; "] {
        assert_eq!(rule(end).unwrap().patterns.len(), 1, "{end:?}");
    }
    for end in ["pcre:\"/x/\"", "nocase", " rev:1"] {
        let reason = format!("the option {:?} does not end with ;", end.trim());
        assert_eq!(rule(end).unwrap_err().reason, reason);
    }
}

/// Writes bytes as a content: each as a letter, escaped, or as hexadecimal digits.
fn written(bytes: &[(u8, u8)]) -> String {
    let one = |&(byte, form): &(u8, u8)| match (form, byte) {
        (0, b'a'..=b'z' | b' ' | b',') => char::from(byte).to_string(),
        (0 | 1, b'"' | b'\\' | b';' | b':') => format!("\\{}", char::from(byte)),
        (2, _) => format!("| {byte:X}|").replace("| ", if byte < 16 { "|0" } else { "|" }),
        _ => format!("|{byte:02x} 00|"),
    };
    bytes.iter().map(one).collect()
}

proptest! {
    /// A content has its bytes, however they are written.
    #[test]
    fn a_content_is_read_as_it_was_meant(
        bytes in proptest::collection::vec(
            (prop_oneof![any::<u8>(), Just(b'"'), Just(b';'), b'a'..=b'z'], 0..4u8),
            4..20,
        ),
    ) {
        let meant: Vec<u8> = bytes
            .iter()
            .flat_map(|&one| {
                let two = written(&[one]).ends_with("00|") && one.1 != 2;
                if two { vec![one.0, 0] } else { vec![one.0] }
            })
            .collect();
        let text = format!(
            "alert tcp any any -> any any (content:\"{}\"; sid:1;)",
            written(&bytes)
        );
        let rules = read(&text).unwrap();
        prop_assert_eq!(&rules.patterns[0].bytes, &meant, "{}", text);
    }
}

/// Texts of the words of rules, in any order.
const RULES: &str = concat!(
    r#"(alert (tcp|udp) |any |\[|\]|-> |\$HOME_NET |!|:|[0-9]{1,5}|::/|\(content:|"|"#,
    r#"\||\\|;|\)|sid:|[0-9a-f]{1,3}|nocase;|flow:|fast_pattern;|é|,|\n){0,30}"#
);

proptest! {
    #[test]
    fn no_file_panics(text in RULES) {
        let _ = parse(&text, "fuzz", &Variables::default());
    }
}
