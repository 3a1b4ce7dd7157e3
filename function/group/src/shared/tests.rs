//! The memory of a group, its rings and its numbers.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::FromRawFd;

use pando_traffic::random::Random;

use super::*;

fn own(fd: i32) -> OwnedFd {
    assert!(fd >= 0);
    // SAFETY: just made.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// Returns the ends of a group's units, in memory of their own.
pub(crate) fn ends<const UNITS: usize>() -> [SharedMemory; UNITS] {
    // SAFETY: plain system calls.
    let file = own(unsafe { libc::memfd_create(c"group".as_ptr(), libc::MFD_CLOEXEC) });
    // SAFETY: as above.
    assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), (WORDS * 8) as i64) }, 0);
    // SAFETY: as above.
    let bells: [OwnedFd; UNITS] =
        std::array::from_fn(|_| own(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK) }));
    let bells = || bells.iter().map(|bell| bell.try_clone().unwrap()).collect();
    std::array::from_fn(|unit| {
        SharedMemory::new(unit as UnitId, Shared::open(&file).unwrap(), bells())
    })
}

/// Reports whether the sleeping unit was woken.
fn woken(unit: &mut SharedMemory) -> bool {
    let mut count = 0u64;
    // SAFETY: eight bytes of ours; the eventfd does not block.
    unsafe { libc::read(unit.fd(), (&raw mut count).cast(), 8) == 8 }
}

/// The group reads and writes the same words (driver/sandbox/unit). Its test compares them, as this
/// one does.
#[test]
fn the_layout_is_that_of_the_header() {
    let defined = |line: &'static str| {
        let mut words = line.strip_prefix("#define ")?.split_whitespace();
        Some((words.next()?, words.next()?.parse().ok()?))
    };
    let lines = include_str!("../../../../bpf/group.h").lines();
    let header: BTreeMap<&str, usize> = lines.filter_map(defined).collect();
    let [unit, _] = ends();
    let newest = Report { now_ns: 1, finish_ns: 2, waiting: 3, ..Report::default() };
    unit.shared.report(0, &Report { packets: 4, bytes: 5, left: 6, worked_ns: 7, ..newest });
    let reported = |value| {
        let is_value = |&n: &usize| unit.shared.of(0, n).load(Ordering::Acquire) == value;
        (0..PAGE_WORDS).find(is_value).expect("a word of the page")
    };
    let ring = unit.shared.ring(1, 0);
    assert_eq!(ring.at, RINGS_AT + RING_WORDS, "the ring from unit 1 to unit 0");
    let first = unit.shared.word(ring.at).as_ptr() as usize;
    let at = |word: &AtomicU64| (word.as_ptr() as usize - first) / 8;
    let want = BTreeMap::from([
        ("GROUP_UNITS", UNITS_MAX),
        ("GROUP_WORDS", WORDS),
        ("GROUP_PAGE_WORDS", PAGE_WORDS),
        ("GROUP_ALIVE", ALIVE),
        ("GROUP_DOORBELL", DOORBELL),
        ("GROUP_SLEEPS", SLEEPS),
        ("GROUP_REPORT_NOW", reported(1)),
        ("GROUP_REPORT_FINISH", reported(2)),
        ("GROUP_REPORT_WAITING", reported(3)),
        ("GROUP_REPORT_PACKETS", reported(4)),
        ("GROUP_REPORT_BYTES", reported(5)),
        ("GROUP_REPORT_LEFT", reported(6)),
        ("GROUP_REPORT_WORKED", reported(7)),
        ("GROUP_RINGS", RINGS_AT),
        ("GROUP_RING_WORDS", RING_WORDS),
        ("GROUP_RING_HEAD", at(ring.head())),
        ("GROUP_RING_TAIL", at(ring.tail())),
        ("GROUP_RING_RECORDS", RING_HEAD),
        ("GROUP_NUMBERS", NUMBERS_AT),
    ]);
    assert_eq!(header, want);
}

/// A writer and a reader in turns: every record comes once, whole and in order, wherever the
/// ring wraps. A record without room is refused whole.
#[test]
fn records_come_as_they_were_written() {
    for seed in 1..=8 {
        let ([mut owner, mut reader], mut random) = (ends(), Random::new(seed));
        let (mut waiting, mut refused, mut words) = (VecDeque::new(), 0, 0);
        for n in 0..1500u64 {
            let length = match random.below(8) {
                0 => random.below(60_000),
                _ => random.below(200),
            };
            let record: Vec<u8> = (0..length).map(|byte| (n + byte) as u8).collect();
            if owner.send(1, &record) {
                words += 1 + record.len().div_ceil(8);
                waiting.push_back(record);
            } else {
                refused += 1;
                let record = 1 + record.len().div_ceil(8);
                // Twice, a record may have to begin at the start of the ring.
                assert!(words + 2 * record + 7_501 > ROOM, "there is room");
            }
            if random.below(40) == 0 {
                let mut came = Vec::new();
                reader.receive(&mut came);
                let came: VecDeque<Vec<u8>> = came.into_iter().map(|(_, bytes)| bytes).collect();
                assert!(came == waiting, "seed {seed}, record {n}");
                (waiting, words) = (VecDeque::new(), 0);
            }
        }
        assert!(refused > 0, "seed {seed}: the ring was never full");
    }
}

/// A faulty unit writes any positions and lengths. Its reader gets records or nothing, and
/// later records as they are.
#[test]
fn a_faulty_writer_is_read_without_a_panic() {
    let [mut owner, mut reader] = ends();
    let mut random = Random::new(1);
    for _ in 0..3000 {
        let ring = owner.shared().ring(0, 1);
        let number = |random: &mut Random| match random.below(5) {
            0 => u64::MAX - random.below(40),
            1 => random.next_u64(),
            2 => WRAP,
            _ => random.below(2 * ROOM as u64),
        };
        let at = number(&mut random);
        ring.tail().store(at, Ordering::Release);
        let before = at.wrapping_sub(random.below(3 * ROOM as u64));
        ring.head().store(before, Ordering::Release);
        for position in [before, before.wrapping_add(1), 0] {
            let length = number(&mut random);
            owner.shared().word(ring.place(position)).store(length, Ordering::Relaxed);
        }
        ring.fills();
        let mut came = Vec::new();
        owner.shared().of(1, DOORBELL).store(1, Ordering::SeqCst);
        reader.receive(&mut came);
        assert!(came.iter().all(|(_, bytes)| bytes.len() <= ROOM * 8));
        ring.head().store(0, Ordering::Release);
        ring.tail().store(0, Ordering::Release);
        came.clear();
        assert!(owner.send(1, b"a record"));
        reader.receive(&mut came);
        assert_eq!(came, [(0, b"a record".to_vec())]);
    }
}

/// Units of a group that search at once never claim the same number. A number beyond the table
/// is refused.
#[test]
fn a_number_is_claimed_by_one_unit() {
    let [one, other] = ends();
    let numbers = [one, other].map(|end| Numbers(Arc::new(end.shared), 3));
    let claimed = std::thread::scope(|scope| {
        let claim = |numbers: Numbers| {
            let free = |number: &u32| numbers.claim(*number, &|last_s| last_s == 0, 7);
            (0..NUMBERS as u32).filter(free).collect::<Vec<u32>>()
        };
        numbers.map(|numbers| scope.spawn(move || claim(numbers))).map(|t| t.join().unwrap())
    });
    let mut all = claimed.concat();
    all.sort_unstable();
    assert!(all == (0..NUMBERS as u32).collect::<Vec<_>>(), "each of them once");
    let [end, _] = ends();
    let shared = Arc::new(end.shared);
    let free = |_: u32| true;
    assert!(!Numbers(shared.clone(), 0).claim(NUMBERS as u32, &free, 7));
    assert!(!Numbers(shared, STAGES_MAX).claim(1, &free, 7));
}

#[test]
fn what_is_sent_ahead_wakes_nobody_while_there_is_room() {
    let [mut owner, mut sleeper] = ends();
    assert!(sleeper.sleep());
    let bytes = [7; 80];
    let fitting = ROOM / 2 / (1 + bytes.len() / 8);
    (0..fitting).for_each(|_| assert!(owner.send_ahead(1, &bytes)));
    assert!(!woken(&mut sleeper));
    assert!(owner.send_ahead(1, &bytes) && woken(&mut sleeper), "the ring runs full");
    let mut came = Vec::new();
    sleeper.receive(&mut came);
    assert_eq!(came.len(), fitting + 1);
    assert!(
        owner.send_ahead(1, &bytes)
            && !woken(&mut sleeper)
            && owner.send(1, &bytes)
            && woken(&mut sleeper)
    );
}
