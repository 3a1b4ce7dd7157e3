//! Kills a unit with an output log at any moment. The output equals that of a run without kills.
//! Needs root; without root the tests report that and skip. PANDO_KILLS=N kills N times per
//! function (20 unless given).

mod bed;

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use pando_abi::BATCH_PACKETS;
use pando_chain::Arrival;
use pando_net::clock::Moment;
use pando_net::packet::Port;

use bed::cases::{CASES, Case, Traffic};
use bed::watched::*;
use bed::{Bench, bench};

#[test]
fn a_killed_unit_is_followed_with_its_state_and_so_is_a_killed_log() {
    let Some(mut bench) = bench("follow") else { return };
    bench.start_with("nat", &[&NAT[..], &LOG].concat());
    let before = translate(&mut bench);
    let first = pid(&bench);
    signal(first, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before, "the standby translates as the unit did");
    let second = next_unit(&bench, first, 3);

    signal(log_pid(&bench), libc::SIGKILL);
    soon("another log is filled", || {
        (status(&bench)["durability"]["refills"].as_u64() >= Some(2)).then_some(())
    });
    assert_eq!(translate(&mut bench), before);
    signal(second, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before, "the new log has what the old one had");
    let third = next_unit(&bench, second, 4);

    // A unit that hangs is killed, and the standby takes over.
    signal(third, libc::SIGSTOP);
    assert_eq!(translate(&mut bench), before);
    let durability = status(&bench)["durability"].clone();
    assert_eq!(
        (&durability["takeovers"], &durability["state_lost"]),
        (&3.into(), &0.into()),
        "{durability}"
    );
    let bill = bench.json(&["bill", "-o", "json"]);
    assert_eq!(bill["owed"][0]["packets"], 5 * 200, "{bill}");
}

#[test]
fn a_standby_that_dies_is_replaced_and_costs_nothing() {
    let Some(mut bench) = bench("standby") else { return };
    bench.start_with("nat", &[&NAT[..], &LOG].concat());
    let before = translate(&mut bench);
    soon("there is a standby", || standing_by(&bench, 2).then_some(()));
    signal(standby_pid(&bench), libc::SIGKILL);
    soon("there is another", || standing_by(&bench, 3).then_some(()));
    let first = pid(&bench);
    signal(first, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before, "the second standby has what the first had");
    let second = next_unit(&bench, first, 4);

    // Both die at once: only the log has the state.
    signal(standby_pid(&bench), libc::SIGKILL);
    signal(second, libc::SIGKILL);
    assert_eq!(
        translate(&mut bench),
        before,
        "a unit that is started when both are dead goes on from the log"
    );
    let third = next_unit(&bench, second, 6);

    // A standby that does not read blocks neither the log nor the unit.
    signal(standby_pid(&bench), libc::SIGSTOP);
    assert_eq!(translate(&mut bench), before);
    signal(standby_pid(&bench), libc::SIGCONT);
    signal(third, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before, "it follows what it missed");
    assert_eq!(status(&bench)["durability"]["state_lost"], 0);
}

/// Waits until a standby has received everything.
fn followed(bench: &Bench) {
    soon("the standby has all", || (status(bench)["durability"]["behind"] == 0).then_some(()));
}

#[test]
fn a_log_that_hangs_holds_up_neither_the_unit_nor_its_standby() {
    let Some(mut bench) = bench("hang") else { return };
    bench.start_with("nat", &[&NAT[..], &LOG].concat());
    let before = translate(&mut bench);
    followed(&bench);
    let (unit, log) = (pid(&bench), log_pid(&bench));
    signal(log, libc::SIGSTOP);
    let unheard = translate_from(&mut bench, 200);
    signal(unit, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before, "what the log had told");
    assert_eq!(translate_from(&mut bench, 200), unheard, "what only the unit had written");
    let second = next_unit(&bench, unit, 3);
    let newer = translate_from(&mut bench, 400);
    let durability = status(&bench)["durability"].clone();
    assert_eq!(
        (&durability["takeovers"], &durability["asked"]),
        (&1.into(), &0.into()),
        "{durability}"
    );

    // When the log continues, it has the writes of both units.
    signal(log, libc::SIGCONT);
    followed(&bench);
    signal(standby_pid(&bench), libc::SIGKILL);
    signal(second, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before);
    assert_eq!(
        [translate_from(&mut bench, 200), translate_from(&mut bench, 400)],
        [unheard, newer]
    );
    let durability = status(&bench)["durability"].clone();
    assert_eq!(
        (&durability["asked"], &durability["state_lost"], &durability["refills"]),
        (&1.into(), &0.into(), &1.into()),
        "{durability}"
    );
}

#[test]
fn unit_and_log_that_die_together_leave_the_state_to_the_standby() {
    let Some(mut bench) = bench("both") else { return };
    bench.start_with("nat", &[&NAT[..], &LOG].concat());
    let before = translate(&mut bench);
    followed(&bench);
    let unit = pid(&bench);
    // A stopped unit cannot fill another log.
    signal(unit, libc::SIGSTOP);
    signal(log_pid(&bench), libc::SIGKILL);
    signal(unit, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before);
    let second = next_unit(&bench, unit, 3);
    followed(&bench);
    signal(second, libc::SIGKILL);
    assert_eq!(translate(&mut bench), before, "the new log has it from the standby");
    let durability = status(&bench)["durability"].clone();
    assert_eq!(
        (&durability["asked"], &durability["state_lost"]),
        (&0.into(), &0.into()),
        "{durability}"
    );
}

#[test]
fn unit_standby_and_log_that_die_together_lose_the_state_and_say_so() {
    let Some(mut bench) = bench("all") else { return };
    bench.start_with("nat", &[&NAT[..], &LOG].concat());
    translate(&mut bench);
    soon("there is a standby", || standing_by(&bench, 2).then_some(()));
    let (unit, standby, log) = (pid(&bench), standby_pid(&bench), log_pid(&bench));
    // Stopped processes cannot react to each other's death.
    signal(unit, libc::SIGSTOP);
    signal(standby, libc::SIGSTOP);
    for pid in [log, standby, unit] {
        signal(pid, libc::SIGKILL);
    }
    next_unit(&bench, unit, 4);
    translate(&mut bench);
    assert_eq!(status(&bench)["durability"]["state_lost"], 1);
    let said = String::from_utf8(bench.run(&["logs", "n"]).stdout).unwrap();
    assert!(
        said.contains("the state of all flows is lost: unit and output log died together"),
        "{said}"
    );
}

/// Returns a port that receives every packet like the unit, with the same time of arrival.
fn observer() -> Port {
    let port = Port::open("far", 32_768).unwrap();
    let on = 1i32;
    // SAFETY: the option takes an int. With it, the kernel stamps each packet once for all
    // receivers.
    let set = unsafe {
        libc::setsockopt(
            port.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_TIMESTAMPNS,
            (&raw const on).cast(),
            4,
        )
    };
    assert_eq!(set, 0);
    port
}

fn drain(port: &mut Port, into: &mut Vec<(Vec<u8>, u64)>) {
    let mut slots = Vec::new();
    port.receive(1024, &mut slots);
    let moment = Moment::read();
    into.extend(slots.iter().map(|slot| {
        let received = port.frame(slot);
        (received.frame.to_vec(), moment.of_stamp(received.time_ns))
    }));
    port.release(slots.len());
}

/// Returns the result of a run without crashes: the packets that leave, and the fingerprint of all
/// flows.
fn expected(case: &Case, seen: &[(Vec<u8>, u64)]) -> (Vec<Vec<u8>>, u64) {
    let mut chain = case.chain();
    let arrivals: Vec<Arrival> = seen
        .iter()
        .map(|(frame, time_ns)| Arrival { frame, time_ns: *time_ns, outer: false, steered: None })
        .collect();
    let (mut outputs, mut at) = (Vec::new(), 0);
    while at < arrivals.len() {
        let count = chain.process(&arrivals[at..]);
        outputs.extend(
            chain.outputs(&arrivals[at..]).flat_map(|(_, out)| out.iter()).map(<[u8]>::to_vec),
        );
        at += count;
    }
    (outputs, chain.flows.digest())
}

/// A log, and no death by silence: a busy machine gives a unit no processor for half a second.
const AWAKE: [&str; 4] = ["--durability", "log", "--hang-ms", "20000"];

/// Kills at random moments, mostly in the middle of a batch. Every packet was processed once. The
/// output is that of a run without kills, in its order, and so is the state of all flows.
fn killed(case: &Case, kills: u64) {
    let Some(mut bench) = bench(case.name) else { return };
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos()
            as u64;
    let mut traffic = Traffic { seed, first: 0, made: 0 };
    let arguments =
        [case.arguments(&bench.directory.join("test.rules")), AWAKE.map(str::to_owned).to_vec()]
            .concat();
    let mut far = observer();
    bench.start_with(case.name, &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let (mut seen, mut left) = (Vec::new(), Vec::new());
    let mut unit = pid(&bench);
    for kill in 0..kills {
        soon("there is a standby", || standing_by(&bench, kill as u32 + 2).then_some(()));
        let at = traffic.draw(24);
        for burst in 0..24 {
            let frames: Vec<Vec<u8>> =
                (0..traffic.draw(BATCH_PACKETS as u64 * 2) + 1).map(|_| traffic.frame()).collect();
            bench.near.send(&frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
            if burst == at {
                let moment = Instant::now() + Duration::from_nanos(traffic.draw(60_000));
                while Instant::now() < moment {}
                signal(unit, libc::SIGKILL);
            }
            drain(&mut bench.near, &mut left);
            drain(&mut far, &mut seen);
        }
        unit = next_unit(&bench, unit, kill as u32 + 2);
    }
    soon("everything is processed", || {
        drain(&mut bench.near, &mut left);
        drain(&mut far, &mut seen);
        let passed: u64 = bench.json(&["bill", "-o", "json"])["owed"][0]["packets"].as_u64()?;
        (passed >= u64::from(traffic.made)).then_some(())
    });
    let durability = status(&bench)["durability"].clone();
    let digest =
        pando_unit::unit::request(&bench.directory.join("run/n/control.sock"), "digest").unwrap();
    drain(&mut bench.near, &mut left);
    let context = format!("{} with seed {seed}: {durability}", case.name);
    assert_eq!(
        (durability["takeovers"].as_u64(), durability["dropped"].as_u64()),
        (Some(kills), Some(0)),
        "{context}"
    );
    assert_eq!(seen.len(), traffic.made as usize, "{context}: the observer saw all");
    let (outputs, state) = expected(case, &seen);
    let mut unique = HashSet::new();
    let first: Vec<Vec<u8>> =
        left.iter().map(|(f, _)| f.clone()).filter(|f| unique.insert(f.clone())).collect();
    assert_eq!(first.len(), outputs.len(), "{context}: packets that left");
    assert!(first == outputs, "{context}: other packets left, or in another order");
    assert!(
        (left.len() - first.len()) as u64 <= durability["sent_again"].as_u64().unwrap(),
        "{context}: {} left twice",
        left.len() - first.len()
    );
    assert_eq!(
        digest.trim_matches('"'),
        format!("{state:016x}"),
        "{context}: the state of the flows"
    );
    let bill = bench.json(&["bill", "-o", "json"]);
    assert_eq!(bill["owed"][0]["packets"], traffic.made, "{context}: the bill");
}

fn kills() -> u64 {
    std::env::var("PANDO_KILLS").map_or(20, |n| n.parse().expect("PANDO_KILLS is a number"))
}

#[test]
fn nat_and_policer_are_killed_and_nobody_notices() {
    CASES[..2].iter().for_each(|case| killed(case, kills()));
}

#[test]
fn ids_balancer_and_whitelister_are_killed_and_nobody_notices() {
    CASES[2..].iter().for_each(|case| killed(case, kills()));
}
