//! A function of a chain, its work, and the numbers that it may lease to flows.

use pando_abi::executor::{Executor, Trap};

use crate::leases::Leases;

/// The total work of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Packets that it processed.
    pub packets: u64,
    /// Bytes of those packets before processing.
    pub bytes: u64,
    /// Fuel burnt, including trapped calls and every start of an instance.
    pub fuel: u64,
    /// Packets on which it trapped.
    pub trapped: u64,
}

/// One function of a chain.
pub struct Stage<E> {
    pub(super) executor: E,
    pub(super) leases: Leases,
    pub(super) work: Work,
    pub(super) last_trap: Option<Trap>,
    /// The function trapped and failed to start again. Each batch retries the start; until it
    /// succeeds, the packets count as trapped.
    pub(super) is_broken: bool,
}

impl<E: Executor> Stage<E> {
    /// Returns a stage with a function and the numbers that it may lease to flows.
    pub fn new(mut executor: E, leases: Leases) -> Stage<E> {
        let work = Work { fuel: executor.take_fuel(), ..Work::default() };
        Stage { executor, leases, work, last_trap: None, is_broken: false }
    }

    /// Calls the function for the batch in its memory, and bills the fuel.
    pub(super) fn call(&mut self, count: usize, shares: usize) -> Result<(), Trap> {
        if self.is_broken {
            return Err(Trap::Limit);
        }
        let called = self.executor.process(count, shares);
        self.work.fuel += self.executor.take_fuel();
        called
    }
    /// Restarts the function, and bills the fuel.
    pub(super) fn renew(&mut self) {
        self.is_broken = self.executor.renew().is_err();
        self.work.fuel += self.executor.take_fuel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arrival, Chain, Fate, Policy};
    use pando_abi::{BATCH_PACKETS, Descriptor};

    /// Traps on every packet, and fails its first two restarts.
    struct Breaks {
        memory: Vec<u8>,
        descriptor: Descriptor,
        starts: usize,
    }

    impl Executor for Breaks {
        fn descriptor(&self) -> &Descriptor {
            &self.descriptor
        }

        fn memory(&mut self) -> (&mut [u8], &Descriptor) {
            (&mut self.memory, &self.descriptor)
        }

        fn memory_ref(&self) -> &[u8] {
            &self.memory
        }

        fn process(&mut self, _count: usize, _shares: usize) -> Result<(), Trap> {
            Err(Trap::Limit)
        }

        fn take_fuel(&mut self) -> u64 {
            1
        }

        fn renew(&mut self) -> Result<(), Trap> {
            self.starts += 1;
            if self.starts < 3 { Err(Trap::Limit) } else { Ok(()) }
        }
    }

    #[test]
    fn a_function_that_does_not_start_again_ends_no_unit() {
        let mut memory = vec![0; 1 << 20];
        let words = [1u32, 8, 4096, 512 << 10, 0, 0, 0, u32::from_le_bytes(*b"trap")];
        words
            .iter()
            .enumerate()
            .for_each(|(n, word)| memory[4 * n..][..4].copy_from_slice(&word.to_le_bytes()));
        let descriptor = Descriptor::read(&memory, 0).unwrap();
        let function = Breaks { memory, descriptor, starts: 0 };
        let mut chain =
            Chain::new(vec![Stage::new(function, Leases::new(1..=1))], Policy::default());
        let frame = [
            &[2; 12][..],
            &[
                8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0,
                2, 0, 8, 0, 0,
            ],
        ]
        .concat();
        let arrivals: Vec<Arrival> = (0..BATCH_PACKETS as u64)
            .map(|time_ns| Arrival { frame: &frame, time_ns, outer: false, steered: None })
            .collect();
        for starts in [1, 2, 3 + BATCH_PACKETS] {
            assert_eq!(chain.process(&arrivals), BATCH_PACKETS);
            assert!(chain.outputs(&arrivals).all(|(fate, _)| fate == Fate::Trapped));
            assert_eq!(
                chain.executors_mut().next().unwrap().starts,
                starts,
                "a broken one is started once a batch"
            );
        }
    }
}
