//! Devices: packets from the kernel and back, through AF_PACKET or AF_XDP. It never looks at flows.

pub mod clock;
pub mod offload;
pub mod packet;
pub mod port;
mod promiscuous;
mod sending;
mod socket;
pub mod xdp;
