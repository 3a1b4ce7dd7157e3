//! The wire format between a pager and a memory host: fixed little-endian headers, then slots, then
//! pages.
//!
//! A connection begins with the host's [`Challenge`], a [`Hello`] and its answer. Then requests and
//! answers alternate:
//! [`Request`], `count` slot numbers of 4 bytes, and for a write `count` pages; the answer is a
//! [`Reply`], and for a read `count` pages.

use crate::BATCH_PAGES_MAX;
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// First bytes of a connection; the digit is the version of the format.
pub const MAGIC: [u8; 8] = *b"PANDOFM3";
/// Bytes of a token, padded with zeros. It never travels: a greeting proves it.
pub const TOKEN_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const NONCE_BYTES: usize = 16;

/// The socket option TCP_RTO_MAX_MS of Linux 6.15 and later, and its value on both ends. Segments
/// that a cut link lost are retransmitted within a second of its return. Older kernels refuse the
/// option, and retransmit later.
pub const TCP_RTO_MAX_MS: (i32, i32) = (44, 1000);

/// The socket options SO_SNDBUFFORCE and SO_RCVBUFFORCE, and their value: a batch fits twice. Root
/// may set them. The options for users would end the growth of the buffers by themselves, at a
/// limit that is a tenth of a batch on most distributions.
pub const WIDE: [(i32, i32); 2] = [(32, 4 << 20), (33, 4 << 20)];

/// The result of a request. The text is for users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// The request was served.
    Ok = 0,
    /// The greeting is of another version.
    WrongVersion,
    /// The greeting proves another token.
    WrongToken,
    /// Fewer slots are free than requested.
    TooSmall,
    /// The lease was never issued, or has ended.
    NoSuchLease,
    /// The message is malformed.
    BadRequest,
}

impl Status {
    /// Returns the status of a number on the wire.
    pub fn from_u32(n: u32) -> Option<Status> {
        Some(match n {
            0 => Status::Ok,
            1 => Status::WrongVersion,
            2 => Status::WrongToken,
            3 => Status::TooSmall,
            4 => Status::NoSuchLease,
            5 => Status::BadRequest,
            _ => return None,
        })
    }

    /// Returns the sentence for users.
    pub fn text(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::WrongVersion => {
                "it speaks another version: install the same release on both sides"
            }
            Status::WrongToken => "it refuses the token: give both sides the same --token-file",
            Status::TooSmall => {
                "it has too little memory free: lower --far, or start it with a larger --size"
            }
            Status::NoSuchLease => {
                "it does not know this lease: it was restarted, or the lease ran out"
            }
            Status::BadRequest => {
                "it does not understand the request: install the same release on both sides"
            }
        }
    }
}

/// The first message of a memory host: a random number. Each greeting proves the token for the
/// number of its own connection, so a recorded one admits no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge {
    /// The random number.
    pub nonce: [u8; NONCE_BYTES],
}

impl Challenge {
    /// Bytes of the message on the wire.
    pub const BYTES: usize = 8 + NONCE_BYTES;

    /// Returns the message as it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..8].copy_from_slice(&MAGIC);
        b[8..].copy_from_slice(&self.nonce);
        b
    }

    /// Parses a received message.
    pub fn decode(b: &[u8; Self::BYTES]) -> Result<Challenge, Status> {
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&b[8..]);
        if b[..8] == MAGIC { Ok(Challenge { nonce }) } else { Err(Status::WrongVersion) }
    }

    /// Begins the proof of a greeting: HMAC-SHA-256 (RFC 2104) by the token, over the random number
    /// and all of the greeting but the proof.
    fn proof(&self, token: &[u8; TOKEN_BYTES], hello: &[u8; Hello::BYTES]) -> Hmac<Sha256> {
        let mut proof = <Hmac<Sha256> as Mac>::new_from_slice(token).expect("a key of any length");
        proof.update(&self.nonce);
        proof.update(&hello[..PROOF_AT]);
        proof.update(&hello[FLAGS_AT..]);
        proof
    }
}

/// Places in a greeting.
const PROOF_AT: usize = 24;
const FLAGS_AT: usize = PROOF_AT + PROOF_BYTES;

/// The first message of a pager. `lease` 0 requests a new lease of `slots` slots. Another value
/// joins that lease. With `slots`, it requests a new lease that replaces that one, which ends. The
/// number of a lease authenticates its owner to other owners of the token. A number that was never
/// issued is allowed, and a repeated request returns the same lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The lease to join. 0 = a new lease.
    pub lease: u64,
    /// Slots of the new lease. 0 = join the lease.
    pub slots: u64,
    /// The token of the memory host, which the message proves.
    pub token: [u8; TOKEN_BYTES],
    /// Requests the memory itself, over a unix socket.
    pub share: bool,
    /// Ends the lease with its last connection: the borrower is about to end.
    pub last: bool,
}

impl Hello {
    /// Bytes of the greeting on the wire.
    pub const BYTES: usize = FLAGS_AT + 8;

    /// Returns the message as it is sent, in answer to a challenge.
    pub fn encode(&self, challenge: &Challenge) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..8].copy_from_slice(&MAGIC);
        b[8..16].copy_from_slice(&self.lease.to_le_bytes());
        b[16..24].copy_from_slice(&self.slots.to_le_bytes());
        b[FLAGS_AT] = self.share as u8;
        b[FLAGS_AT + 1] = self.last as u8;
        let proof = challenge.proof(&self.token, &b).finalize().into_bytes();
        b[PROOF_AT..FLAGS_AT].copy_from_slice(&proof);
        b
    }

    /// Parses a received message. It must prove `token` for the challenge of its connection.
    pub fn decode(
        b: &[u8; Self::BYTES],
        challenge: &Challenge,
        token: &[u8; TOKEN_BYTES],
    ) -> Result<Hello, Status> {
        if b[..8] != MAGIC {
            return Err(Status::WrongVersion);
        }
        if b[FLAGS_AT] > 1 || b[FLAGS_AT + 1] > 1 || b[FLAGS_AT + 2..] != [0; 6] {
            return Err(Status::BadRequest);
        }
        // In constant time, so that the duration does not reveal the proof.
        challenge
            .proof(token, b)
            .verify_slice(&b[PROOF_AT..FLAGS_AT])
            .map_err(|_| Status::WrongToken)?;
        Ok(Hello {
            lease: u64_at(b, 8),
            slots: u64_at(b, 16),
            token: *token,
            share: b[FLAGS_AT] == 1,
            last: b[FLAGS_AT + 1] == 1,
        })
    }
}

/// The host's answer to a [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The result.
    pub status: Status,
    /// The lease.
    pub lease: u64,
    /// Slots of the lease; with `TooSmall`, the slots that are free.
    pub slots: u64,
}

impl Welcome {
    /// Bytes of the answer to a greeting on the wire.
    pub const BYTES: usize = 32;

    /// Returns the message as it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[..8].copy_from_slice(&MAGIC);
        b[8..12].copy_from_slice(&(self.status as u32).to_le_bytes());
        b[16..24].copy_from_slice(&self.lease.to_le_bytes());
        b[24..32].copy_from_slice(&self.slots.to_le_bytes());
        b
    }

    /// Parses a received message.
    pub fn decode(b: &[u8; Self::BYTES]) -> Result<Welcome, Status> {
        if b[..8] != MAGIC {
            return Err(Status::WrongVersion);
        }
        let status = Status::from_u32(u32_at(b, 8)).ok_or(Status::BadRequest)?;
        Ok(Welcome { status, lease: u64_at(b, 16), slots: u64_at(b, 24) })
    }
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Read slots.
    Read = 1,
    /// Write slots.
    Write = 2,
}

/// Header of a request; `count` slots follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The operation.
    pub op: Op,
    /// Slots of the request.
    pub count: u32,
    /// The number of the request on its connection.
    pub serial: u64,
}

impl Request {
    /// Bytes of the header on the wire.
    pub const BYTES: usize = 16;

    /// Returns the message as it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[0] = self.op as u8;
        b[4..8].copy_from_slice(&self.count.to_le_bytes());
        b[8..16].copy_from_slice(&self.serial.to_le_bytes());
        b
    }

    /// Parses a received message.
    pub fn decode(b: &[u8; Self::BYTES]) -> Result<Request, Status> {
        let op = match b[0] {
            1 => Op::Read,
            2 => Op::Write,
            _ => return Err(Status::BadRequest),
        };
        let count = u32_at(b, 4);
        if b[1..4] != [0; 3] || count == 0 || count as usize > BATCH_PAGES_MAX {
            return Err(Status::BadRequest);
        }
        Ok(Request { op, count, serial: u64_at(b, 8) })
    }
}

/// Header of an answer; it repeats the request's serial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The result.
    pub status: Status,
    /// The serial of the request.
    pub serial: u64,
}

impl Reply {
    /// Bytes of the header on the wire.
    pub const BYTES: usize = 16;

    /// Returns the message as it is sent.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let mut b = [0; Self::BYTES];
        b[0..4].copy_from_slice(&(self.status as u32).to_le_bytes());
        b[8..16].copy_from_slice(&self.serial.to_le_bytes());
        b
    }

    /// Parses a received message.
    pub fn decode(b: &[u8; Self::BYTES]) -> Result<Reply, Status> {
        let status = Status::from_u32(u32_at(b, 0)).ok_or(Status::BadRequest)?;
        Ok(Reply { status, serial: u64_at(b, 8) })
    }
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn u64_at(b: &[u8], at: usize) -> u64 {
    u32_at(b, at) as u64 | (u32_at(b, at + 4) as u64) << 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// A greeting is read as it was meant. No other bytes are one: a changed bit, another token
        /// or the challenge of another connection.
        #[test]
        fn a_greeting_holds_for_its_token_and_its_connection_alone(
            (lease, slots, share, last) in any::<(u64, u64, bool, bool)>(),
            token in any::<[u8; TOKEN_BYTES]>(),
            nonce in any::<[u8; NONCE_BYTES]>(),
            bit in 0..Hello::BYTES * 8,
        ) {
            let hello = Hello { lease, slots, token, share, last };
            let challenge = Challenge { nonce };
            let sent = hello.encode(&challenge);
            prop_assert_eq!(Hello::decode(&sent, &challenge, &token), Ok(hello));
            let mut changed = sent;
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Hello::decode(&changed, &challenge, &token).is_err());
            let (mut other, mut elsewhere) = (token, challenge);
            other[bit % TOKEN_BYTES] ^= 1;
            prop_assert_eq!(Hello::decode(&sent, &challenge, &other), Err(Status::WrongToken));
            elsewhere.nonce[bit % NONCE_BYTES] ^= 1;
            prop_assert_eq!(Hello::decode(&sent, &elsewhere, &token), Err(Status::WrongToken));
            prop_assert!(!sent.windows(8).any(|part| token.windows(8).any(|t| t == part)));
            prop_assert_eq!(Challenge::decode(&challenge.encode()), Ok(challenge));
        }

        #[test]
        fn arbitrary_bytes_are_no_greeting(
            bytes in proptest::collection::vec(any::<u8>(), Hello::BYTES), good in any::<bool>(),
        ) {
            let mut b: [u8; Hello::BYTES] = bytes.try_into().unwrap();
            if good { b[..8].copy_from_slice(&MAGIC); b[FLAGS_AT] &= 1; b[FLAGS_AT + 1..].fill(0); }
            let read = Hello::decode(&b, &Challenge { nonce: [1; 16] }, &[2; TOKEN_BYTES]);
            prop_assert!(read == Err(Status::WrongToken) || !good && read.is_err());
        }

        #[test]
        fn request_round_trip(
            bytes in any::<[u8; Request::BYTES]>(), op in 0u8..5, count in 0u32..600,
        ) {
            let mut b = bytes;
            let read = Request::decode(&b);
            prop_assert!(read.is_err() || read.unwrap().encode() == b);
            b[..4].copy_from_slice(&[op, 0, 0, 0]);
            b[4..8].copy_from_slice(&count.to_le_bytes());
            let fine = (1..=2).contains(&op) && (1..=BATCH_PAGES_MAX as u32).contains(&count);
            prop_assert_eq!(Request::decode(&b).is_ok(), fine);
            if let Ok(r) = Request::decode(&b) { prop_assert_eq!(r.encode(), b); }
        }

        #[test]
        fn reply_and_welcome_never_panic(
            a in any::<[u8; Reply::BYTES]>(), w in any::<[u8; Welcome::BYTES]>(),
        ) {
            let _ = Reply::decode(&a);
            let mut w = w;
            let _ = Welcome::decode(&w);
            w[..8].copy_from_slice(&MAGIC);
            let _ = Welcome::decode(&w);
        }
    }
}
