//! The secret talk between a unit and a log on another host: Noise with a key that both have
//! (NNpsk0, X25519, ChaCha20-Poly1305, SHA-256). A caller without the tenant's key learns and
//! changes nothing, and a recorded talk stays secret if the key becomes known later.
//!
//! ```text
//!   unit → log   length │ version │ tenant │ psk, e        the tenant is bound to the handshake
//!   log → unit   length │ e, ee
//!   both ways    length │ sealed bytes …                   numbered: none is lost or repeated
//! ```
//!
//! The watching process shakes hands. The unit's process, behind its walls, gets the keys of this
//! one talk only.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{ChaCha20Poly1305, Key as CipherKey, KeyInit, Nonce};
use snow::{Builder, HandshakeState};

use super::keys::{self, KEY_BYTES, Key, Keys, TENANT_BYTES_MAX};

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const PROLOGUE: &str = "pando output log ";
const VERSION: u8 = 1;
/// Length of either message of the handshake: a public key and a tag.
const HAND_BYTES: usize = 48;
/// The longest first message, without its length.
pub const CALL_BYTES_MAX: usize = 1 + TENANT_BYTES_MAX + HAND_BYTES;
/// Length of the tag behind the sealed bytes of a record.
const TAG_BYTES: usize = 16;
/// The most bytes in one record, unsealed.
pub const RECORD_BYTES_MAX: usize = 16 << 10;

/// The keys of one talk, for sending and for receiving.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    sends: Key,
    receives: Key,
}

impl Session {
    /// Returns the session as one word, for an order to the unit's process.
    pub fn word(&self) -> String {
        keys::hex(&[self.sends, self.receives].concat())
    }

    /// Reads the word of a session.
    pub fn read(word: &str) -> Option<Session> {
        let both: [u8; 2 * KEY_BYTES] = keys::unhex(word)?;
        let (sends, receives) = both.split_first_chunk()?;
        Some(Session { sends: *sends, receives: receives.try_into().ok()? })
    }
}

fn failed(e: impl std::fmt::Display) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, format!("its key is another one ({e})"))
}

fn state(tenant: &str, key: &Key, calls: bool) -> Result<HandshakeState, snow::Error> {
    let prologue = format!("{PROLOGUE}{VERSION} {tenant}");
    let builder = Builder::new(PATTERN.parse()?).psk(0, key)?.prologue(prologue.as_bytes())?;
    if calls { builder.build_initiator() } else { builder.build_responder() }
}

fn session(mut state: HandshakeState, calls: bool) -> Session {
    let (called, answered) = state.dangerously_get_raw_split();
    if calls {
        Session { sends: called, receives: answered }
    } else {
        Session { sends: answered, receives: called }
    }
}

/// Calls a log as a tenant, over a new connection. Fails after `patience`.
pub fn call(
    socket: &TcpStream,
    tenant: &str,
    key: &Key,
    patience: Duration,
) -> io::Result<Session> {
    let until = Instant::now() + patience;
    let mut state = state(tenant, key, true).map_err(failed)?;
    let mut hand = [0; HAND_BYTES];
    state.write_message(&[], &mut hand).map_err(failed)?;
    let mut message = vec![0, 0, VERSION];
    message.extend_from_slice(tenant.as_bytes());
    message.extend_from_slice(&hand);
    let length = (message.len() - 2) as u16;
    message[..2].copy_from_slice(&length.to_le_bytes());
    socket.set_write_timeout(Some(patience))?;
    (&*socket).write_all(&message)?;
    let mut answer = [0; 2 + HAND_BYTES];
    let mut read = 0;
    while read < answer.len() {
        let left = until.checked_duration_since(Instant::now()).ok_or(ErrorKind::TimedOut)?;
        socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match (&*socket).read(&mut answer[read..]) {
            Ok(0) => {
                return Err(io::Error::new(
                    ErrorKind::PermissionDenied,
                    format!("it refuses the key of tenant {tenant}"),
                ));
            }
            Ok(bytes) => read += bytes,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(e) => return Err(e),
        }
    }
    if answer[..2] != (HAND_BYTES as u16).to_le_bytes() {
        return Err(failed("no output log answers so"));
    }
    state.read_message(&answer[2..], &mut []).map_err(failed)?;
    Ok(session(state, true))
}

/// The reason why a call is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The bytes are no call of a unit.
    #[error("it sent no call of a unit")]
    Foreign,
    /// There is no key of that tenant.
    #[error("there is no key of tenant {0:?}")]
    Unknown(String),
    /// The caller has another key.
    #[error("its key of tenant {0} is another one")]
    Wrong(String),
}

/// Answers a call. Returns `None` while bytes of it are missing, else the answer, the session and
/// the tenant.
pub fn answer(arrived: &[u8], keys: &Keys) -> Result<Option<(Vec<u8>, Session, String)>, Refused> {
    let Some((length, rest)) = arrived.split_first_chunk::<2>() else { return Ok(None) };
    let length = usize::from(u16::from_le_bytes(*length));
    if length > CALL_BYTES_MAX || length <= 1 + HAND_BYTES {
        return Err(Refused::Foreign);
    }
    if rest.first().is_some_and(|&version| version != VERSION) || rest.len() > length {
        return Err(Refused::Foreign);
    }
    let Some(call) = rest.get(1..length) else { return Ok(None) };
    let (tenant, hand) = call.split_at(call.len() - HAND_BYTES);
    let tenant = str::from_utf8(tenant).map_err(|_| Refused::Foreign)?;
    let key = keys.of(tenant).ok_or_else(|| Refused::Unknown(tenant.to_owned()))?;
    let wrong = |_| Refused::Wrong(tenant.to_owned());
    let mut state = state(tenant, key, false).map_err(wrong)?;
    state.read_message(hand, &mut []).map_err(wrong)?;
    let mut hand = [0; HAND_BYTES];
    state.write_message(&[], &mut hand).map_err(wrong)?;
    let message = [&(HAND_BYTES as u16).to_le_bytes()[..], &hand].concat();
    Ok(Some((message, session(state, false), tenant.to_owned())))
}

/// Seals and opens the records of a talk.
pub struct Seal {
    sends: (ChaCha20Poly1305, u64),
    receives: (ChaCha20Poly1305, u64),
}

fn nonce(number: &mut u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_le_bytes());
    *number += 1;
    nonce.into()
}

impl Seal {
    /// Begins a talk.
    pub fn new(session: &Session) -> Seal {
        let cipher = |key: &Key| (ChaCha20Poly1305::new(CipherKey::from_slice(key)), 0);
        Seal { sends: cipher(&session.sends), receives: cipher(&session.receives) }
    }

    /// Appends bytes as records.
    pub fn put(&mut self, bytes: &[u8], into: &mut Vec<u8>) {
        let (cipher, number) = &mut self.sends;
        for some in bytes.chunks(RECORD_BYTES_MAX) {
            into.extend_from_slice(&((some.len() + TAG_BYTES) as u16).to_le_bytes());
            let at = into.len();
            into.extend_from_slice(some);
            let tag = cipher
                .encrypt_in_place_detached(&nonce(number), &[], &mut into[at..])
                .expect("a record is short");
            into.extend_from_slice(&tag);
        }
    }

    /// Appends the content of the first record in `from`. Returns the length of the record, or
    /// `None` if bytes of it are missing.
    pub fn take(&mut self, from: &[u8], into: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let foreign = || io::Error::new(ErrorKind::InvalidData, "a record is not sealed as agreed");
        let Some((length, rest)) = from.split_first_chunk::<2>() else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes(*length));
        if !(TAG_BYTES..=TAG_BYTES + RECORD_BYTES_MAX).contains(&length) {
            return Err(foreign());
        }
        let Some(record) = rest.get(..length) else { return Ok(None) };
        let (sealed, tag) = record.split_at(length - TAG_BYTES);
        let (at, (cipher, number)) = (into.len(), &mut self.receives);
        into.extend_from_slice(sealed);
        let opened =
            cipher.decrypt_in_place_detached(&nonce(number), &[], &mut into[at..], tag.into());
        if opened.is_err() {
            into.truncate(at);
            return Err(foreign());
        }
        Ok(Some(2 + length))
    }
}
