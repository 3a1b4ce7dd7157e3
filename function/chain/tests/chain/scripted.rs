//! Functions written in Rust, in a memory laid out as that of a module. A packet's payload has
//! an action for each function of the chain, so a test decides every outcome.

use pando_abi::executor::{Executor, Trap};
use pando_abi::{BATCH_BYTES, BATCH_EVENTS, BATCH_PACKETS, Descriptor, flag};
use pando_flow::{End, FlowKey, checksum};

/// Offsets in the batch of `sdk/function/c/pando_nf.h`.
const BATCH: usize = 4096;
const EVENT_COUNT: usize = BATCH + 4;
const PACKETS: usize = BATCH + 8;
const PACKET_BYTES: usize = 40;
const EVENTS: usize = PACKETS + BATCH_PACKETS * PACKET_BYTES;
const DATA: usize = EVENTS + BATCH_EVENTS * 8;
/// Between the descriptor and the batch.
const SLOTS: usize = 64;

/// The offset of the first action in a frame of [`frame`].
pub const ACTIONS: usize = 42;

/// Actions of a function on a packet.
pub mod act {
    /// Passes and leaves the state.
    pub const PASS: u8 = b'p';
    /// Counts the packet in the flow's state and passes.
    pub const COUNT: u8 = b'c';
    /// Drops, without state.
    pub const DROP: u8 = b'd';
    /// Traps, after it has changed state and packet.
    pub const TRAP: u8 = b't';
    /// Takes the lease of a flow without state, and gives the packet the number as its port.
    pub const LEASE: u8 = b'l';
    /// Counts, and reports the count as an event.
    pub const EVENT: u8 = b'e';
    /// Grows the packet as far as it may.
    pub const GROW: u8 = b'g';
}

/// A function that counts packets per flow.
pub struct Scripted {
    memory: Vec<u8>,
    descriptor: Descriptor,
    stage: usize,
    fuel: u64,
    /// How often it was started again.
    pub renewed: usize,
}

impl Scripted {
    /// Returns the function number `stage` of a chain. It has `state_bytes` of state: a count in 8
    /// bytes, its number in 4.
    pub fn new(stage: usize, state_bytes: u32) -> Scripted {
        let mut memory = vec![0; DATA + BATCH_BYTES];
        let name = u32::from_le_bytes(*b"test");
        for (n, word) in
            [1, state_bytes, BATCH as u32, SLOTS as u32, 0, 0, 1, name].into_iter().enumerate()
        {
            memory[4 * n..][..4].copy_from_slice(&word.to_le_bytes());
        }
        let descriptor = Descriptor::read(&memory, 0).expect("it is right");
        Scripted { memory, descriptor, stage, fuel: 0, renewed: 0 }
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.memory[at..at + 4].try_into().expect("4 bytes"))
    }

    fn set(&mut self, at: usize, value: u32) {
        self.memory[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Counts the packet in the state of its flow; returns the count.
    fn count(&mut self, slot: usize, flags: &mut u32) -> u64 {
        let before = if *flags & flag::STATE_VALID != 0 {
            u64::from_le_bytes(self.memory[slot..slot + 8].try_into().expect("8 bytes"))
        } else {
            0
        };
        self.memory[slot..slot + 8].copy_from_slice(&(before + 1).to_le_bytes());
        *flags |= flag::STATE_PUT | flag::STATE_VALID;
        before + 1
    }

    /// Takes the offered number, or finds the flow's; without one it drops.
    fn lease(&mut self, entry: usize, slot: usize, data: usize, flags: &mut u32) -> bool {
        if *flags & flag::STATE_VALID == 0 || self.word(slot + 8) == 0 {
            if *flags & flag::LEASED == 0 {
                return false;
            }
            let number = self.word(entry + 24);
            *flags |= flag::LEASE_TAKEN | flag::ALIAS;
            self.count(slot, flags);
            self.set(slot + 8, number);
        }
        let port = (self.word(slot + 8) as u16).to_be_bytes();
        self.memory[data + 26..data + 30].copy_from_slice(&NAT);
        self.memory[data + 34..data + 36].copy_from_slice(&port);
        true
    }

    fn packet(&mut self, index: usize) -> Result<(), Trap> {
        let entry = PACKETS + index * PACKET_BYTES;
        let [data, length, capacity, slot] = [0, 4, 8, 12].map(|at| self.word(entry + at) as usize);
        let mut flags = self.word(entry + 16);
        let earlier = self.word(entry + 28) as usize;
        if earlier > 0 {
            flags |= self.word(PACKETS + (earlier - 1) * PACKET_BYTES + 16) & flag::STATE_VALID;
        }
        let action = self.memory[data..data + length].get(ACTIONS + self.stage).copied();
        let mut passes = true;
        match action.unwrap_or(act::PASS) {
            act::COUNT => drop(self.count(slot, &mut flags)),
            act::DROP => passes = false,
            act::TRAP => {
                self.count(slot, &mut flags);
                self.memory[data..data + length].fill(0xee);
                return Err(Trap::Fault("told to".into()));
            }
            act::LEASE if flags & flag::TRANSLATED == 0 => {
                passes = self.lease(entry, slot, data, &mut flags)
            }
            act::EVENT => {
                let count = self.count(slot, &mut flags);
                let n = self.word(EVENT_COUNT);
                self.set(EVENTS + 8 * n as usize, index as u32);
                self.set(EVENTS + 8 * n as usize + 4, count as u32);
                self.set(EVENT_COUNT, n + 1);
            }
            act::GROW => {
                self.memory[data + length..data + capacity].fill(act::PASS);
                self.set(entry + 4, capacity as u32);
            }
            _ => {}
        }
        self.set(entry + 16, flags);
        self.set(entry + 20, u32::from(passes));
        Ok(())
    }
}

impl Executor for Scripted {
    fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    fn memory(&mut self) -> (&mut [u8], &Descriptor) {
        (&mut self.memory, &self.descriptor)
    }

    fn memory_ref(&self) -> &[u8] {
        &self.memory
    }

    fn process(&mut self, count: usize, _shares: usize) -> Result<(), Trap> {
        self.fuel += count as u64;
        (0..count).try_for_each(|index| self.packet(index))
    }

    fn take_fuel(&mut self) -> u64 {
        std::mem::take(&mut self.fuel)
    }

    fn renew(&mut self) -> Result<(), Trap> {
        // As in a new instance, nothing that it wrote remains.
        *self = Scripted {
            renewed: self.renewed + 1,
            fuel: self.fuel,
            ..Scripted::new(self.stage, self.descriptor.state_bytes as u32)
        };
        Ok(())
    }
}

/// The address that [`act::LEASE`] gives packets.
pub const NAT: [u8; 4] = [203, 0, 113, 7];
const SERVER: [u8; 4] = [192, 0, 2, 9];

/// Returns a UDP packet of client `client`, with an action for each function.
pub fn frame(client: u8, actions: &[u8]) -> Vec<u8> {
    between(([10, 0, 0, client], 1000 + u16::from(client)), (SERVER, 53), actions)
}

/// Returns a UDP packet from the server to this address and port.
pub fn reply(to: [u8; 4], port: u16, actions: &[u8]) -> Vec<u8> {
    between((SERVER, 53), (to, port), actions)
}

fn between(from: ([u8; 4], u16), to: ([u8; 4], u16), actions: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((28 + actions.len() as u16).to_be_bytes());
    frame.extend([0, 9, 0, 0, 64, 17, 0, 0]);
    frame.extend([from.0, to.0].concat());
    frame.extend([from.1.to_be_bytes(), to.1.to_be_bytes()].concat());
    frame.extend((8 + actions.len() as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(actions);
    checksum::fill(&mut frame);
    frame
}

/// Returns the key of a client's flow.
pub fn key(client: u8) -> FlowKey {
    let client = End::new(&[10, 0, 0, client], (1000 + u16::from(client)).to_be_bytes());
    FlowKey::between(client, End::new(&SERVER, 53u16.to_be_bytes()), 17, 4).0
}
