//! Datagrams that come in fragments are one packet to the functions and to the flow.

use pando_chain::{Arrival, Chain, Fate, Policy};
use pando_flow::{FlowKey, checksum};

use crate::scripted::{Scripted, act};
use crate::{chain, through};

const ACK: u8 = 16;
const FIN: u8 = 1;
const RST: u8 = 4;

/// A TCP packet with these flags and payload, to or from the server.
fn tcp(flags: u8, reply: bool, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((40 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 9, 0, 0, 64, 6, 0, 0]);
    let (client, server) = ([10, 0, 0, 1], [192, 0, 2, 9]);
    frame.extend(if reply { [server, client] } else { [client, server] }.concat());
    frame.extend(if reply { [0, 80, 4, 0] } else { [4, 0, 0, 80] });
    frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0]);
    frame.extend(payload);
    checksum::fill(&mut frame);
    frame
}

/// Returns the fragments of an IPv4 packet, of `most` bytes each.
fn cut(whole: &[u8], most: usize) -> Vec<Vec<u8>> {
    let part = |(n, part): (usize, &[u8])| {
        let more = u16::from(34 + n * most + part.len() < whole.len());
        let mut frame = [&whole[..34], part].concat();
        frame[16..18].copy_from_slice(&(20 + part.len() as u16).to_be_bytes());
        frame[20..22].copy_from_slice(&((n * most / 8) as u16 | more << 13).to_be_bytes());
        checksum::fill_header(&mut frame[14..34]);
        frame
    };
    whole[34..].chunks(most).enumerate().map(part).collect()
}

fn closed(chain: &Chain<Scripted>) -> Option<bool> {
    let key = FlowKey::of_frame(&tcp(ACK, false, b"")).unwrap().0;
    chain.flows.find(&key).map(|id| chain.flows.flow(id).ends.closed())
}

/// The bytes of a later fragment stand where a whole packet has its flags. They end no connection.
#[test]
fn the_payload_of_a_fragment_ends_no_connection() {
    let mut payload = [0; 40];
    // The second fragment begins at byte 12 of the payload; a packet's flags are at byte 13.
    payload[12 + 13] = RST;
    let mut chain = counting();
    let parts = cut(&tcp(ACK, false, &payload), 32);
    let fates: Vec<Fate> = through(&mut chain, &parts, 1).iter().map(|(fate, _)| *fate).collect();
    assert_eq!(fates, [Fate::Held, Fate::Passed]);
    assert_eq!(closed(&chain), Some(false));
}

/// Returns a chain with state in the flow of [`tcp`], which therefore stays.
fn counting() -> Chain<Scripted> {
    let mut chain = chain(1, Policy::default());
    let key = FlowKey::of_frame(&tcp(ACK, false, b"")).unwrap().0;
    let mut source = crate::chain(1, Policy::default());
    through(&mut source, &[crate::scripted::frame(1, &[act::COUNT])], 0);
    let state = source.export(&crate::scripted::key(1));
    assert!(chain.import(&key, &state, 0));
    chain
}

/// The end of a connection counts in packets that came in fragments as in whole ones.
#[test]
fn a_fragmented_end_of_a_connection_ends_it() {
    let mut chain = counting();
    through(&mut chain, &[tcp(FIN | ACK, false, b"")], 1);
    assert_eq!(closed(&chain), Some(false), "the other side still sends");
    through(&mut chain, &cut(&tcp(FIN | ACK, true, &[0; 40]), 24), 2);
    assert_eq!(closed(&chain), Some(true));
}

/// After a trap on a datagram, its fragments leave as they came, if packets then pass.
#[test]
fn a_datagram_on_which_a_function_trapped_leaves_as_it_came() {
    for passes in [true, false] {
        let mut chain = chain(1, Policy { trapped_passes: passes, ..Policy::default() });
        let whole = crate::scripted::frame(1, &[act::TRAP; 100]);
        let parts = cut(&whole, 40);
        let arrivals: Vec<Arrival> = parts
            .iter()
            .map(|frame| Arrival { frame, time_ns: 1, outer: false, steered: None })
            .collect();
        assert_eq!(chain.process(&arrivals), parts.len());
        let (fates, out): (Vec<Fate>, Vec<Vec<Vec<u8>>>) = chain
            .outputs(&arrivals)
            .map(|(fate, out)| (fate, out.iter().map(<[u8]>::to_vec).collect()))
            .unzip();
        assert_eq!(fates, [Fate::Held, Fate::Held, Fate::Trapped]);
        assert_eq!(out.concat(), if passes { parts } else { Vec::new() });
    }
}

/// A function adds bytes behind the end of a datagram. They are no part of it and do not leave.
#[test]
fn bytes_behind_the_end_of_a_datagram_do_not_leave() {
    let mut chain = chain(1, Policy::default());
    let whole = crate::scripted::frame(1, &[act::GROW; 100]);
    let parts = cut(&whole, 40);
    let arrivals: Vec<Arrival> = parts
        .iter()
        .map(|frame| Arrival { frame, time_ns: 1, outer: false, steered: None })
        .collect();
    chain.process(&arrivals);
    let out: Vec<Vec<u8>> =
        chain.outputs(&arrivals).flat_map(|(_, out)| out.iter()).map(<[u8]>::to_vec).collect();
    assert_eq!(out, parts);
}
