//! A packet at the wrong door (`bpf/door.h`, `bpf/arrive.h`): one TCP flow of a service with
//! endpoints on three hosts, whose packets a router sends to any of them.
//!
//! ```text
//! packet of no entry ─────────────► socket here? ──yes──► delivered
//!                                       │no
//!                                    QUESTION to each host of the service
//!                                       ├─► has it: delivered there, PROVEN back: an entry
//!                                       └─► has it not: NOT_HERE back
//!                                              └─ the last one: unfound once: dropped
//!                                                 unfound again, a second later: refused
//! packet of an entry ──tunnel─────► socket there? ──yes──► delivered
//!                                       │no
//!                                    LOST back: the entry goes ──► QUESTION as above
//! ```
//!
//! The model assumes what the rest of Pando provides: the sweep removes an entry of a host for its
//! own endpoint before the client uses the ports again, and a host learns of the first endpoint on
//! another one within the second that lies between the two looks for a flow.

use stateright::{Model, Property};
use std::collections::BTreeMap;

/// The number of hosts. Endpoint E is on host E; that of host 0 starts later.
pub const HOSTS: usize = 3;
/// Messages that one packet of the client may cause in a row: client, tunnel, lost, question,
/// not here.
const ROUNDS_MAX: u8 = 5;

/// A fault that is put into the protocol, so that the checker has something to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None: the protocol as it is.
    None,
    /// The first host without the flow decides for all.
    FirstAnswerDecides,
    /// A flow that no host has is refused at the first look.
    OneLook,
    /// A flow that no host has is refused at the first look, if an entry named another endpoint.
    OneLookIfNamed,
    /// A host passes a question on.
    PassOn,
    /// A host delivers by the other host's choice, without a look at its sockets.
    TrustTheTunnel,
}

/// What may happen, and how often.
#[derive(Clone, Debug)]
pub struct Door {
    /// The fault to find.
    pub fault: Fault,
    /// Packets that the client sends.
    pub packets: u8,
    /// Changes of the host that the router chooses.
    pub rehashes: u8,
    /// Packets and messages that are lost.
    pub losses: u8,
}

/// A packet of the client: its number, and that of the connection it belongs to.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Packet {
    number: u8,
    connection: u8,
}

/// What travels to a host.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub enum What {
    /// The packet from the client.
    Client,
    /// The packet for an endpoint there.
    Tunnel(u8),
    /// The packet, as a question.
    Question,
    /// The packet, as the answer of a host without its flow.
    NotHere,
    /// The packet, from the host of its entry's endpoint, which has no such socket.
    Lost,
    /// A copy of the packet: this endpoint of the sender has its flow.
    Proven(u8),
}

/// A packet or message on its way.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct Message {
    to: u8,
    from: u8,
    packet: Packet,
    what: What,
    /// Messages before this one that the packet has caused in a row.
    rounds: u8,
}

/// A question of a host about a packet.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
struct Ask {
    asked: u8,
    none: u8,
    named: bool,
}

/// When a host has missed the flow for the first time.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
enum Unfound {
    Never,
    JustNow,
    ASecondAgo,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client sends a packet.
    Send,
    /// A message arrives.
    Arrive(Message),
    /// A message is lost.
    Lose(Message),
    /// The router chooses another host.
    Rehash(u8),
    /// The endpoint of host 0 starts.
    Start,
    /// A host learns of that endpoint.
    Learn(u8),
    /// The connection ends, and the client opens another one with the same ports to an endpoint.
    Reopen(u8),
    /// A second passes.
    Second,
}

/// All hosts, the client and what is on its way.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct State {
    ingress: u8,
    connection: u8,
    /// The endpoint that has the socket of the connection.
    socket: u8,
    /// For each host, the hosts that have endpoints of the service, as bits.
    lists: [u8; HOSTS],
    /// For each host, the endpoint of its entry for the flow.
    entries: [Option<u8>; HOSTS],
    asks: [BTreeMap<u8, Ask>; HOSTS],
    unfound: [Unfound; HOSTS],
    /// Sorted; the same message may be on its way twice.
    net: Vec<Message>,
    sent: u8,
    rehashes: u8,
    losses: u8,
    started: bool,
    /// A packet was delivered by the answer to a question.
    found: bool,
    dropped: bool,
    /// The client got an RST for a connection whose socket lives.
    reset: bool,
    went_round: bool,
}

impl State {
    fn send(&mut self, message: Message) {
        self.went_round |= message.rounds >= ROUNDS_MAX;
        self.net.push(message);
        self.net.sort();
    }

    fn take(&mut self, message: &Message) {
        let at = self
            .net
            .iter()
            .position(|m| m == message)
            .expect("it is on its way");
        self.net.remove(at);
    }

    fn is_end_of(&self, packet: Packet, endpoint: u8) -> bool {
        packet.connection == self.connection && self.socket == endpoint
    }

    /// Gives a packet to an endpoint. One without the socket answers with an RST.
    fn deliver(&mut self, packet: Packet, endpoint: u8) {
        self.reset |= packet.connection == self.connection && self.socket != endpoint;
    }

    fn refuse(&mut self, packet: Packet) {
        self.reset |= packet.connection == self.connection;
    }

    /// `steer`: a packet of the client at its ingress.
    fn steer(&mut self, m: Message) {
        match self.entries[m.to as usize] {
            Some(endpoint) if endpoint == m.to => self.deliver(m.packet, endpoint),
            Some(endpoint) => self.send(Message {
                to: endpoint,
                from: m.to,
                what: What::Tunnel(endpoint),
                rounds: m.rounds + 1,
                ..m
            }),
            None => self.seek(m, false),
        }
    }

    /// `seek`: asks the sockets here, then the other hosts.
    fn seek(&mut self, m: Message, named: bool) {
        let here = m.to;
        if self.is_end_of(m.packet, here) {
            self.entries[here as usize] = Some(here);
            return self.deliver(m.packet, here);
        }
        let hosts: Vec<u8> = (0..HOSTS as u8)
            .filter(|&h| h != here && self.lists[here as usize] >> h & 1 == 1)
            .collect();
        let ask = Ask {
            asked: hosts.len() as u8,
            none: 0,
            named,
        };
        self.asks[here as usize].insert(m.packet.number, ask);
        for to in hosts {
            self.send(Message {
                to,
                from: here,
                what: What::Question,
                rounds: m.rounds + 1,
                ..m
            });
        }
    }

    /// `sought`: answers a question.
    fn sought(&mut self, m: Message, fault: Fault) {
        let here = m.to;
        let known = self.entries[here as usize] == Some(here);
        if !known && !self.is_end_of(m.packet, here) {
            let (to, what) = match fault {
                Fault::PassOn => ((here + 1) % HOSTS as u8, What::Question),
                _ => (m.from, What::NotHere),
            };
            return self.send(Message {
                to,
                from: here,
                what,
                rounds: m.rounds + 1,
                ..m
            });
        }
        let what = What::Proven(here);
        self.send(Message {
            to: m.from,
            from: here,
            what,
            rounds: m.rounds + 1,
            ..m
        });
        self.entries[here as usize] = Some(here);
        self.found |= self.is_end_of(m.packet, here);
        self.deliver(m.packet, here);
    }

    /// `arrived`: a packet that another host has sent to an endpoint here.
    fn arrived(&mut self, m: Message, endpoint: u8, fault: Fault) {
        let here = m.to as usize;
        if self.entries[here] == Some(endpoint) {
            return self.deliver(m.packet, endpoint);
        }
        if fault != Fault::TrustTheTunnel && !self.is_end_of(m.packet, endpoint) {
            let what = What::Lost;
            return self.send(Message {
                to: m.from,
                from: m.to,
                what,
                rounds: m.rounds + 1,
                ..m
            });
        }
        self.entries[here] = Some(endpoint);
        self.deliver(m.packet, endpoint);
    }

    /// `gone_there`: the host of the entry's endpoint has no such flow.
    fn gone_there(&mut self, m: Message) {
        match self.entries[m.to as usize] {
            Some(endpoint) if endpoint == m.to || endpoint != m.from => return self.dropped = true,
            _ => self.entries[m.to as usize] = None,
        }
        self.seek(m, true);
    }

    /// `not_there`: a host does not have the flow.
    fn not_there(&mut self, m: Message, fault: Fault) {
        let here = m.to as usize;
        let Some(ask) = self.asks[here].get_mut(&m.packet.number) else {
            return;
        };
        ask.none += 1;
        let (all, named) = (ask.none >= ask.asked, ask.named);
        if !all && fault != Fault::FirstAnswerDecides {
            return;
        }
        self.asks[here].remove(&m.packet.number);
        let at_once = match fault {
            Fault::OneLook => true,
            Fault::OneLookIfNamed => named,
            _ => false,
        };
        match self.unfound[here] {
            _ if at_once => self.refuse(m.packet),
            Unfound::ASecondAgo => self.refuse(m.packet),
            Unfound::JustNow => self.dropped = true,
            Unfound::Never => {
                self.unfound[here] = Unfound::JustNow;
                self.dropped = true;
            }
        }
    }

    /// `learn`: another host has the flow in a socket of its endpoint.
    fn learn(&mut self, m: Message, endpoint: u8) {
        let here = m.to as usize;
        let knows = self.lists[here] >> endpoint & 1 == 1;
        if knows && self.entries[here] != Some(m.to) {
            self.entries[here] = Some(endpoint);
        }
    }
}

impl Model for Door {
    type State = State;
    type Action = Step;

    /// An established connection to endpoint 1, which came in at host 2.
    fn init_states(&self) -> Vec<State> {
        vec![State {
            ingress: 2,
            connection: 0,
            socket: 1,
            lists: [0b110; HOSTS],
            entries: [None, Some(1), Some(1)],
            asks: Default::default(),
            unfound: [Unfound::Never; HOSTS],
            net: vec![],
            sent: 0,
            rehashes: 0,
            losses: 0,
            started: false,
            found: false,
            dropped: false,
            reset: false,
            went_round: false,
        }]
    }

    fn actions(&self, s: &State, steps: &mut Vec<Step>) {
        if s.reset || s.went_round {
            return;
        }
        if s.sent < self.packets {
            steps.push(Step::Send);
        }
        let mut before = None;
        for m in &s.net {
            if before != Some(m) {
                steps.push(Step::Arrive(*m));
                if s.losses < self.losses {
                    steps.push(Step::Lose(*m));
                }
            }
            before = Some(m);
        }
        let hosts = 0..HOSTS as u8;
        if s.rehashes < self.rehashes {
            steps.extend(hosts.clone().filter(|&h| h != s.ingress).map(Step::Rehash));
        }
        if !s.started {
            steps.push(Step::Start);
        }
        let knows = |h: u8, endpoint: u8| s.lists[h as usize] >> endpoint & 1 == 1;
        if s.started {
            steps.extend(hosts.clone().filter(|&h| !knows(h, 0)).map(Step::Learn));
        }
        if s.connection == 0 {
            let known = hosts
                .clone()
                .filter(|&e| e != s.socket && knows(s.ingress, e));
            steps.extend(known.map(Step::Reopen));
        }
        let all_know = hosts.clone().all(|h| !s.started || knows(h, 0));
        if s.net.is_empty() && all_know && s.unfound.contains(&Unfound::JustNow) {
            steps.push(Step::Second);
        }
    }

    fn next_state(&self, s: &State, step: Step) -> Option<State> {
        let mut s = s.clone();
        match step {
            Step::Send => {
                let packet = Packet {
                    number: s.sent,
                    connection: s.connection,
                };
                let (to, what) = (s.ingress, What::Client);
                s.sent += 1;
                s.send(Message {
                    to,
                    from: to,
                    packet,
                    what,
                    rounds: 0,
                });
            }
            Step::Lose(m) => {
                s.take(&m);
                s.losses += 1;
            }
            Step::Arrive(m) => {
                s.take(&m);
                match m.what {
                    What::Client => s.steer(m),
                    What::Tunnel(endpoint) => s.arrived(m, endpoint, self.fault),
                    What::Question => s.sought(m, self.fault),
                    What::NotHere => s.not_there(m, self.fault),
                    What::Lost => s.gone_there(m),
                    What::Proven(endpoint) => s.learn(m, endpoint),
                }
            }
            Step::Rehash(host) => {
                s.ingress = host;
                s.rehashes += 1;
            }
            Step::Start => {
                s.started = true;
                s.lists[0] |= 1;
            }
            Step::Learn(host) => s.lists[host as usize] |= 1,
            Step::Reopen(endpoint) => {
                // The sweep has removed the entry of the endpoint's own host. Those of others stay.
                let old = s.socket as usize;
                s.entries[old] = None;
                s.connection += 1;
                s.socket = endpoint;
                s.entries[s.ingress as usize] = Some(endpoint);
                s.entries[endpoint as usize] = Some(endpoint);
            }
            Step::Second => {
                for u in &mut s.unfound {
                    if *u == Unfound::JustNow {
                        *u = Unfound::ASecondAgo;
                    }
                }
            }
        }
        Some(s)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no connection that lives is reset", |_, s: &State| !s.reset),
            Property::always("no packet goes round", |_, s: &State| !s.went_round),
            Property::always("nothing is dropped without a cause", |_, s: &State| {
                !s.dropped || s.losses > 0 || s.started || s.connection > 0
            }),
            Property::sometimes("a flow is found at a wrong door", |_, s: &State| s.found),
            Property::sometimes("an unfound packet is dropped first", |_, s: &State| {
                s.unfound.contains(&Unfound::ASecondAgo)
            }),
        ]
    }
}
