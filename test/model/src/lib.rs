//! Models of the protocols between hosts. A checker explores every interleaving of their messages.
//!
//! A model is small: three hosts and one flow. It has the decisions of the real program, under the
//! same names, and leaves out how the packets are written.

pub mod door;
