//! Batches in the memory of a function, which may write anything into it.

use pando_abi::{
    BATCH_BYTES, BATCH_EVENTS, BATCH_PACKETS, CONFIG_BYTES_MAX, Descriptor, DescriptorError,
    GROWTH_BYTES, Input, STATE_BYTES_MAX, VERSION, Writer, events, output, room_for,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Offsets in the batch, as in `sdk/function/c/pando_nf.h`.
const PACKETS: usize = 8;
const PACKET_BYTES: usize = 40;
const EVENTS: usize = PACKETS + BATCH_PACKETS * PACKET_BYTES;
const DATA: usize = EVENTS + BATCH_EVENTS * 8;
const BATCH: usize = DATA + BATCH_BYTES;

/// The words of a descriptor: version, state, batch, slots, configuration, its bytes, leases.
fn described(words: [u32; 7], memory_bytes: usize) -> Vec<u8> {
    let mut memory = vec![0; memory_bytes];
    for (n, word) in words.into_iter().enumerate() {
        memory[4 * n..][..4].copy_from_slice(&word.to_le_bytes());
    }
    memory[28..32].copy_from_slice(b"test");
    memory
}

fn word(memory: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(memory[at..at + 4].try_into().unwrap())
}

/// Each part may end with the memory, and not one byte later.
#[test]
fn each_part_of_a_function_lies_in_its_memory() {
    let bytes = 64 + BATCH;
    let slots = BATCH_PACKETS * 16; // 9 bytes of state take 16
    let fits = [
        [VERSION, 0, 64, 0, 0, 0, 0],
        [VERSION, 9, 64, (bytes - slots) as u32, 0, 0, 1],
        [VERSION, 0, 64, 0, (bytes - 100) as u32, 100, 0],
    ];
    for (n, what) in ["the batch", "the slots", "the configuration"].into_iter().enumerate() {
        let read = |words| Descriptor::read(&described(words, bytes), 0);
        assert!(read(fits[n]).is_ok(), "{what}");
        let mut beyond = fits[n];
        beyond[2 + n] += 1;
        let Err(DescriptorError::Outside { what: named, .. }) = read(beyond) else {
            panic!("it is outside")
        };
        assert_eq!(named, what);
        beyond[2 + n] = u32::MAX;
        assert!(matches!(read(beyond), Err(DescriptorError::Outside { .. })), "{what}");
    }
    for (at, most, error) in [
        (1, STATE_BYTES_MAX, DescriptorError::State(STATE_BYTES_MAX + 1)),
        (5, CONFIG_BYTES_MAX, DescriptorError::Config(CONFIG_BYTES_MAX + 1)),
    ] {
        let mut words = fits[0];
        words[at] = most as u32 + 1;
        assert_eq!(Descriptor::read(&described(words, bytes), 0), Err(error));
    }
    let memory = described(fits[0], bytes);
    for offset in [bytes - 3, bytes - 1, bytes, usize::MAX - 2] {
        let read = Descriptor::read(&memory, offset);
        assert!(matches!(read, Err(DescriptorError::Outside { .. })), "at {offset}");
    }
    assert_eq!(Descriptor::read(&memory, bytes - 4), Err(DescriptorError::Version(0)));
}

/// A packet of a batch: its bytes, its flags, and its flow's slot.
type Packet = (Vec<u8>, u32, usize);

fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let frame = proptest::collection::vec(any::<u8>(), 0..300);
    proptest::collection::vec((frame, 0..16u32, 0..BATCH_PACKETS), 1..BATCH_PACKETS)
}

proptest! {
    #![proptest_config(ProptestConfig { rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    /// A function finds each packet where its entry points, with room to grow that no other packet
    /// uses. The unit finds the result at the same place.
    #[test]
    fn packets_are_where_their_entries_point(packets in packets()) {
        let mut memory = described([VERSION, 9, 1024, 64, 0, 0, 0], 1024 + BATCH);
        let descriptor = Descriptor::read(&memory, 0).unwrap();
        memory[1024..].fill(0xee);
        let mut writer = Writer::new(&mut memory, &descriptor);
        for (n, (frame, flags, slot)) in packets.iter().enumerate() {
            writer.push(&Input {
                frame,
                slot: *slot,
                flags: *flags,
                lease: n as u32 + 7,
                earlier: n as u32,
                time_ns: u64::MAX - n as u64,
            });
        }
        prop_assert_eq!((word(&memory, 1024), word(&memory, 1028)), (0, 0), "no event yet");
        let (mut used, mut free) = (0, 1024 + DATA);
        for (n, (frame, flags, slot)) in packets.iter().enumerate() {
            let entry = 1024 + PACKETS + n * PACKET_BYTES;
            let [data, length, capacity, state, was, verdict, lease, earlier] =
                [0, 4, 8, 12, 16, 20, 24, 28].map(|at| word(&memory, entry + at));
            let [data, length, capacity] = [data, length, capacity].map(|n| n as usize);
            prop_assert!(data >= free && capacity >= length + GROWTH_BYTES);
            prop_assert_eq!(&memory[data..data + length], &frame[..]);
            prop_assert_eq!((was, verdict), (*flags, 0), "no verdict means drop");
            prop_assert_eq!((lease, earlier), (n as u32 + 7, n as u32));
            prop_assert_eq!(state as usize, 64 + 16 * slot);
            let result = output(&memory, &descriptor, n, used, frame.len());
            prop_assert_eq!(result.data, data);
            prop_assert!(!result.pass);
            free = data + capacity;
            used += room_for(frame.len());
        }
        prop_assert!(free <= memory.len());
    }

    /// A function may write any words. A result lies in the room of its packet, and an event names
    /// a packet of the batch.
    #[test]
    fn no_result_leaves_the_room_of_its_packet(
        words in proptest::collection::vec(
            prop_oneof![0..400u32, Just(1), Just(u32::MAX), any::<u32>()],
            20..400,
        ),
        lengths in proptest::collection::vec(0..1500usize, 1..BATCH_PACKETS),
    ) {
        let mut memory = described([VERSION, 0, 64, 0, 0, 0, 0], 64 + BATCH);
        let descriptor = Descriptor::read(&memory, 0).unwrap();
        for (n, word) in words.iter().cycle().take(DATA / 4).enumerate() {
            memory[64 + 4 * n..][..4].copy_from_slice(&word.to_le_bytes());
        }
        let mut data = 0;
        for (n, &length) in lengths.iter().enumerate() {
            let result = output(&memory, &descriptor, n, data, length);
            prop_assert_eq!(result.data, 64 + DATA + data);
            prop_assert!(result.length <= room_for(length));
            prop_assert!(!result.pass || result.length >= 14, "half a frame passes");
            data += room_for(length);
        }
        let reported: Vec<_> = events(&memory, &descriptor, lengths.len()).collect();
        prop_assert!(reported.len() <= BATCH_EVENTS);
        prop_assert!(reported.iter().all(|(index, _)| *index < lengths.len()));
    }
}
