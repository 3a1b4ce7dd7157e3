//! Keeps a group's output log up to date: the log receives each flow's state after each batch,
//! before the batch leaves.
//!
//! The log is a unit without packets. To the log, these messages are ordinary pushes. After an
//! owner's death, the log therefore answers a pull like any unit with a replica.

use pando_flow::FlowKey;

use crate::handover::{Handover, States};
use crate::held::Role;
use crate::message::Message;

impl Handover {
    /// Returns the message to the log after packets of a flow with these clocks were processed.
    /// Returns `None` for a flow that this unit does not own.
    pub fn keep(&mut self, key: &FlowKey, clocks: &[u64], states: &impl States) -> Option<Message> {
        let flow = self.flows.get_mut(key).filter(|flow| matches!(flow.role, Role::Owner))?;
        clocks.iter().for_each(|&clock| flow.done.insert(clock));
        let (clock, holes) = (flow.done.clock, flow.done.holes());
        Some(Message::Push {
            key: *key,
            epoch: flow.epoch,
            clock,
            holes,
            state: states.snapshot(key),
        })
    }

    /// Returns the messages for all flows that this unit owns, for a new log.
    pub fn keep_all(&mut self, states: &impl States) -> Vec<Message> {
        let keys: Vec<FlowKey> = self.flows.keys().copied().collect();
        keys.iter().filter_map(|key| self.keep(key, &[], states)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Snapshot;
    use crate::{Admission, Header, NO_UNIT, Timing};

    struct None;

    impl States for None {
        fn snapshot(&self, _: &FlowKey) -> Snapshot {
            Vec::new()
        }

        fn install(&mut self, _: &FlowKey, _: &[u8]) {}

        fn forget(&mut self, _: &FlowKey) {}
    }

    /// A missing packet and a queued one are in no state yet.
    #[test]
    fn the_log_is_told_what_its_state_lacks() {
        let mut unit = Handover::new(0, 0b11, Timing::default());
        let key = FlowKey::from_bytes([1; FlowKey::LENGTH_BYTES]);
        let mut told = |arrive: &[u64], processed: &[u64]| {
            for &clock in arrive {
                let (position, epoch) = (clock as u32 - 1, 1);
                let header = Header {
                    flowlet_starts: clock == 1,
                    ethertype: 0x800,
                    unit: 0,
                    previous: NO_UNIT,
                    epoch,
                    position,
                    clock,
                    replicas: 0,
                };
                assert_eq!(unit.arrive(0, &key, &header, &mut None), Admission::Run);
            }
            match unit.keep(&key, processed, &None) {
                Some(Message::Push { clock, holes, .. }) => (clock, holes),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(told(&[1, 3, 4], &[1, 3]), (3, 1));
        assert_eq!(told(&[2], &[4]), (4, 1));
        assert_eq!(told(&[], &[2]), (4, 0));
    }
}
