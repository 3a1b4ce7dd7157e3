//! Compares functions with Linux on the same packets: the NAT with nftables' masquerade, the
//! policer with nftables' limit (this kernel has no act_police). It also compares the policer with
//! an independent model.

mod router;

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::{Duration, Instant};

use pando_chain::leases::Leases;
use pando_chain::{Arrival, Chain, Fate, Policy, Stage};
use pando_flow::checksum;
use pando_wasm::{Function, Limits, Runtime};

use router::{End, NAT, Router, SERVER, frame};

const SOON: Duration = Duration::from_secs(10);
/// A time that is long for a packet that takes microseconds.
const NOTHING: Duration = Duration::from_millis(100);

fn chain(function: &str, configuration: &str) -> Chain<Function> {
    let path = format!("{}/../functions/{function}/{function}.wasm", env!("CARGO_MANIFEST_DIR"));
    let function = Runtime::new(Limits::default(), 2)
        .load(Path::new(&path), configuration.as_bytes())
        .unwrap();
    Chain::new(vec![Stage::new(function, Leases::new(40_000..=40_999))], Policy::default())
}

fn through(chain: &mut Chain<Function>, frame: &[u8], time_ns: u64) -> Option<Vec<u8>> {
    let arrivals = [Arrival { frame, time_ns, outer: false, steered: None }];
    chain.process(&arrivals);
    let (fate, bytes) = chain.outputs(&arrivals).next().unwrap();
    (fate == Fate::Passed).then(|| bytes.concat())
}

fn port_at(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Returns the frame without its variable parts: Ethernet's addresses, the chosen port and the
/// checksums that depend on it. It first checks that the checksums are right.
fn modulo(frame: &[u8], port_at: usize) -> Vec<u8> {
    assert_eq!(checksum::header_is_right(frame), Some(true), "{frame:02x?}");
    assert_ne!(checksum::transport_is_right(frame), Some(false), "{frame:02x?}");
    let sum = if frame[23] == 6 { 50 } else { 40 };
    let absent = frame[23] == 17 && frame[sum..sum + 2] == [0, 0];
    let mut rest = frame.to_vec();
    rest[..12].fill(0);
    rest[port_at..port_at + 2].fill(0);
    rest[sum..sum + 2].fill(u8::from(!absent));
    rest
}

/// The ports that one of the two translators gave the flows.
#[derive(Default)]
struct Ports {
    of: HashMap<(End, End, bool), u16>,
    taken: HashSet<(u16, End, bool)>,
}

impl Ports {
    /// A flow always has the same port, and two flows to one server never share one.
    fn note(&mut self, from: End, to: End, tcp: bool, port: u16) {
        let before = self.of.insert((from, to, tcp), port);
        assert!(before.is_none_or(|p| p == port), "{from:?} → {to:?} had {before:?}, has {port}");
        assert_eq!(
            self.taken.insert((port, to, tcp)),
            before.is_none(),
            "{from:?} → {to:?}: port {port} is another's"
        );
    }
}

/// Sends a packet from inside through both, and its answer back.
fn exchange(
    router: &mut Router,
    nat: &mut Chain<Function>,
    seen: &mut [Ports; 2],
    from: End,
    to: End,
    step: &Step,
) {
    let sent = frame(from, to, step.flags, step.sequence, step.payload, step.summed);
    assert_eq!(router.inside.send(&[&sent]), 1);
    let linux = Router::leaving(&mut router.outside, SOON, |f| f[26..34] == [NAT, SERVER].concat())
        .expect("Linux passes it on");
    let ours = through(nat, &sent, 1).expect("the NAT passes it on");
    assert_eq!(modulo(&linux, 34), modulo(&ours, 34), "{from:?} → {to:?}");
    let ports = [port_at(&linux, 34), port_at(&ours, 34)];
    for (seen, port) in seen.iter_mut().zip(ports) {
        seen.note(from, to, step.flags.is_some(), port);
    }
    let answer = |port| frame(to, (NAT, port), step.answer, 1, b"answer", step.summed);
    assert_eq!(router.outside.send(&[&answer(ports[0])]), 1);
    let linux = Router::leaving(&mut router.inside, SOON, |f| f[26..30] == SERVER)
        .expect("Linux passes the answer on");
    let ours = through(nat, &answer(ports[1]), 1).expect("the NAT passes the answer on");
    assert_eq!((linux[30..34].try_into().unwrap(), port_at(&linux, 36)), from);
    assert_eq!(port_at(&ours, 36), from.1);
    assert_eq!(modulo(&linux, 36), modulo(&ours, 36), "the answer to {from:?}");
}

struct Step {
    flags: Option<u8>,
    answer: Option<u8>,
    sequence: u32,
    payload: &'static [u8],
    summed: bool,
}

#[test]
fn the_nat_translates_as_masquerade_does() {
    let rules = "add table ip t; add chain ip t c { type nat hook postrouting priority 100; }; add \
        rule ip t c oifname r_out masquerade";
    let Some(mut router) = Router::new(rules) else { return };
    let mut nat = chain("nat", "address=203.0.113.7\ninside=10.0.0.0/8\n");
    let mut seen = <[Ports; 2]>::default();
    let tcp = [
        Step { flags: Some(2), answer: Some(0x12), sequence: 100, payload: b"", summed: true },
        Step {
            flags: Some(0x18),
            answer: Some(0x10),
            sequence: 101,
            payload: b"a question",
            summed: true,
        },
        Step {
            flags: Some(0x18),
            answer: Some(0x10),
            sequence: 111,
            payload: b"odd",
            summed: true,
        },
    ];
    let udp = [true, false, true].map(|summed| Step {
        flags: None,
        answer: None,
        sequence: 0,
        payload: b"datagram",
        summed,
    });
    for steps in [&tcp, &udp] {
        for step in steps {
            // The same ports at all clients, and one client port to two server ports. A NAT must
            // resolve these conflicts.
            for (client, port, service) in
                (2..10u8).flat_map(|c| [(c, 5000, 80), (c, 5000, 443), (c, 5001, 80)])
            {
                exchange(
                    &mut router,
                    &mut nat,
                    &mut seen,
                    ([10, 0, 0, client], port),
                    (SERVER, service),
                    step,
                );
            }
        }
    }
    assert_eq!(seen.each_ref().map(|s| s.of.len()), [48, 48]);
    // Unsolicited packets from outside reach no client: neither at a free port, nor from another
    // server at a used port.
    let [linux, ours] =
        seen.each_ref().map(|s| s.of[&(([10, 0, 0, 2], 5000), (SERVER, 80), false)]);
    for (from, ports) in [((SERVER, 80), [30_000, 30_000]), ((SERVER, 81), [linux, ours])] {
        let unasked = |port| frame(from, (NAT, port), None, 0, b"unasked", true);
        assert_eq!(router.outside.send(&[&unasked(ports[0])]), 1);
        assert_eq!(Router::leaving(&mut router.inside, NOTHING, |f| f[12..14] == [8, 0]), None);
        assert_eq!(through(&mut nat, &unasked(ports[1]), 1), None);
    }
}

const RATE: u64 = 20_000;
const BURST_FRAMES: usize = 10;
const PAYLOAD: [u8; 472] = [7; 472];

/// Returns whether each packet passes a bucket of `burst` bytes that fills with `rate` bytes a
/// second. It computes the level before a packet from the first packet on, in exact fractions, as
/// defined (RFC 2697 with one bucket).
fn model(packets: &[(u64, usize)], rate: u64, burst: u64) -> Vec<bool> {
    const SECOND: u128 = 1_000_000_000;
    let mut passed: Vec<bool> = Vec::new();
    for (n, &(now, bytes)) in packets.iter().enumerate() {
        let mut level = u128::from(burst) * SECOND;
        let mut at = packets[0].0;
        for (&(time, bytes), &pass) in packets[..n].iter().zip(&passed).chain([(&(now, 0), &false)])
        {
            level =
                (level + u128::from(time - at) * u128::from(rate)).min(u128::from(burst) * SECOND);
            at = time;
            level -= if pass { bytes as u128 * SECOND } else { 0 };
        }
        passed.push(level >= bytes as u128 * SECOND);
    }
    passed
}

#[test]
fn the_policer_passes_what_a_token_bucket_passes() {
    let mut policer = chain("policer", &format!("rate={RATE}\nburst=5000\n"));
    let mut random = 7u64;
    let mut draw = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let mut packets: HashMap<u8, Vec<(u64, usize)>> = HashMap::new();
    let mut fates: HashMap<u8, Vec<bool>> = HashMap::new();
    let mut now = 0;
    for _ in 0..2000 {
        now += draw(10_000_000) * draw(3);
        let (flow, bytes) = (draw(4) as u8, 1 + draw(1000) as usize);
        let packet =
            frame(([10, 0, 0, 2 + flow], 5000), (SERVER, 80), None, 0, &vec![0; bytes], false);
        packets.entry(flow).or_default().push((now, packet.len()));
        fates.entry(flow).or_default().push(through(&mut policer, &packet, now).is_some());
    }
    for (flow, packets) in &packets {
        assert_eq!(fates[flow], model(packets, RATE, 5000), "flow {flow}");
    }
    let passed = fates.values().flatten().filter(|p| **p).count();
    assert!((200..1800).contains(&passed), "{passed} of 2000: the load tests nothing");
}

/// The kernel meters the IP packet and the policer the frame, so the kernel's rate and burst are
/// smaller. Its bucket holds its burst plus one second of its rate (`nft_limit_init`).
#[test]
fn the_policer_passes_what_linux_passes_up_to_one_burst() {
    let (frame_bytes, packet_bytes) = (PAYLOAD.len() as u64 + 42, PAYLOAD.len() as u64 + 28);
    let (rate, burst) = (RATE * packet_bytes / frame_bytes, BURST_FRAMES as u64 * packet_bytes);
    let rules = format!(
        "add table ip t; add chain ip t c {{ type filter hook forward priority 0; policy drop; }}; \
         add rule ip t c limit rate {rate} bytes/second burst {burst} bytes accept"
    );
    let Some(mut router) = Router::new(&rules) else { return };
    let mut policer = chain(
        "policer",
        &format!("rate={RATE}\nburst={}\n", RATE + BURST_FRAMES as u64 * frame_bytes),
    );
    // 205,600 bytes a second: ten times the rate
    let (start, gap) = (Instant::now(), Duration::from_micros(2500));
    let (mut linux, mut ours) = (HashSet::new(), HashSet::new());
    let number = |f: &[u8]| u32::from_be_bytes(f[42..46].try_into().unwrap());
    for n in 0..400u32 {
        let mut payload = PAYLOAD;
        payload[..4].copy_from_slice(&n.to_be_bytes());
        let packet = frame(([10, 0, 0, 2], 5000), (SERVER, 80), None, 0, &payload, false);
        assert_eq!(router.inside.send(&[&packet]), 1);
        ours.extend(
            through(&mut policer, &packet, start.elapsed().as_nanos() as u64).map(|f| number(&f)),
        );
        let left = (gap * (n + 1)).saturating_sub(start.elapsed());
        Router::leaving(&mut router.outside, left, |f| {
            linux.extend((f[30..34] == SERVER).then(|| number(f)));
            false
        });
    }
    Router::leaving(&mut router.outside, NOTHING, |f| {
        linux.extend((f[30..34] == SERVER).then(|| number(f)));
        false
    });
    let sent_seconds = start.elapsed().as_secs_f64();
    assert!(
        ours.len() < 390 && ours.len() > BURST_FRAMES,
        "{} passed in {sent_seconds} s: the load tests nothing",
        ours.len()
    );
    assert!(
        linux.len().abs_diff(ours.len()) <= BURST_FRAMES,
        "Linux passed {}, the policer {}",
        linux.len(),
        ours.len()
    );
    // At no point of the sequence is one ahead of the other by more than a burst.
    let mut ahead = 0i64;
    for n in 0..400 {
        ahead += i64::from(linux.contains(&n)) - i64::from(ours.contains(&n));
        assert!(ahead.unsigned_abs() as usize <= BURST_FRAMES, "{ahead} after packet {n}");
    }
}
