//! The changes that a following standby has not received yet. It keeps flow names only; the latest
//! state of a flow is read when it is sent.
//!
//! A flow that changes with every packet is sent once for all its changes. The cost of a standby
//! thus grows with the number of flows, not packets. A standby that stops reading blocks no other
//! process: when too many names pile up, they are dropped and it receives all flows anew.

use pando_flow::FlowKey;

/// Names beyond twice the number of flows after which all flows are sent instead.
const NAMES: usize = 4096;

/// Names of flows to send.
#[derive(Default)]
pub struct Behind {
    /// The standby has nothing valid: all flows are to be sent.
    pub anew: bool,
    /// Flows that it must forget before it receives other changes. Their resources may belong to
    /// another flow by now.
    pub gone: Vec<FlowKey>,
    /// Changed flows, each listed once.
    pub changed: Vec<FlowKey>,
}

impl Behind {
    /// Returns the list for a standby that has nothing.
    pub fn all() -> Behind {
        Behind { anew: true, ..Behind::default() }
    }

    /// Reports whether the standby has everything.
    pub fn is_empty(&self) -> bool {
        !self.anew && self.gone.is_empty() && self.changed.is_empty()
    }

    /// Notes that a flow is gone.
    pub fn forget(&mut self, key: FlowKey, flows: usize) {
        if !self.anew {
            self.gone.push(key);
            self.bound(flows);
        }
    }

    /// Notes a changed flow that is not in the list yet.
    pub fn note(&mut self, key: FlowKey, flows: usize) {
        if !self.anew {
            self.changed.push(key);
            self.bound(flows);
        }
    }

    fn bound(&mut self, flows: usize) {
        if self.gone.len() + self.changed.len() > 2 * flows + NAMES {
            *self = Behind::all();
        }
    }
}
