//! What agents say to each other, as bytes.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | `topo-lb` and zero |
//! | 1 | [`VERSION`] |
//! | 1 | 1 is a hello, 2 an answer, 3 an answer of one that knows the asking node |
//! | 1 | length of the name |
//! | 253 | name of the node that says it, and zeros |
//! | 8 | nonce, big-endian |
//! | 8 | cookie, big-endian |
//!
//! All messages have one length: an answer is never longer than its hello.

use std::sync::Arc;

use topo_lb_common::hop::{PROBE_BYTES, PROBE_MAGIC as MAGIC};

/// An agent does not answer one of another version: then connections get source NAT.
pub const VERSION: u8 = 1;
/// A Node's name is a DNS subdomain (RFC 1123).
const LONGEST_NAME: usize = 253;
/// Bytes of a message.
pub const LENGTH: usize = MAGIC.len() + 3 + LONGEST_NAME + 16;

const _: () = assert!(LENGTH == PROBE_BYTES);

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// What it is.
    pub kind: Kind,
    /// The node that says it.
    pub node: Arc<str>,
    /// A number of the asking node, which the answer repeats.
    pub nonce: u64,
    /// A number of the answering node for the Ethernet address of the asking one; zero: not known yet.
    pub cookie: u64,
}

/// Kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A question.
    Hello,
    /// Its answer.
    Answer {
        /// Whether the answering node takes frames of the asking one for what another node sends on.
        knows: bool,
    },
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoMessage {
    /// They may be one of another version.
    Version,
    /// They are none of any version.
    Garbage,
}

impl Message {
    /// The bytes; `None` if no Node can have this name.
    #[must_use]
    pub fn encode(&self) -> Option<[u8; LENGTH]> {
        let name = self.node.as_bytes();
        if !is_name(name) {
            return None;
        }
        let kind = match self.kind {
            Kind::Hello => 1,
            Kind::Answer { knows } => 2 + u8::from(knows),
        };
        let mut padded = [0; LONGEST_NAME];
        padded[..name.len()].copy_from_slice(name);
        let parts: [&[u8]; 5] = [
            &MAGIC,
            &[VERSION, kind, name.len() as u8],
            &padded,
            &self.nonce.to_be_bytes(),
            &self.cookie.to_be_bytes(),
        ];
        parts.concat().try_into().ok()
    }

    /// Reads a message.
    ///
    /// # Errors
    /// The bytes are none.
    pub fn decode(bytes: &[u8]) -> Result<Self, NoMessage> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(NoMessage::Garbage)?;
        match rest.first() {
            Some(&VERSION) => {}
            Some(_) => return Err(NoMessage::Version),
            None => return Err(NoMessage::Garbage),
        }
        Self::read(&rest[1..]).ok_or(NoMessage::Garbage)
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (&[kind, length], rest) = bytes.split_first_chunk()?;
        let (padded, rest) = rest.split_first_chunk::<LONGEST_NAME>()?;
        let (&nonce, rest) = rest.split_first_chunk()?;
        let (name, padding) = padded.split_at_checked(length.into())?;
        let kind = match kind {
            1 => Kind::Hello,
            2 | 3 => Kind::Answer { knows: kind == 3 },
            _ => return None,
        };
        let node = str::from_utf8(name).ok().filter(|_| is_name(name))?.into();
        let cookie = u64::from_be_bytes(rest.try_into().ok()?);
        let is_padding = padding.iter().all(|&byte| byte == 0);
        is_padding.then_some(Self { kind, node, nonce: u64::from_be_bytes(nonce), cookie })
    }
}

/// Whether a Node can have this name. So a name in a log line is no text of a stranger.
fn is_name(name: &[u8]) -> bool {
    let is_of_name =
        |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte);
    (1..=LONGEST_NAME).contains(&name.len()) && name.iter().all(is_of_name)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(kind: Kind, name: &str) -> Message {
        Message { kind, node: name.into(), nonce: 0x0123_4567_89ab_cdef, cookie: u64::MAX - 7 }
    }

    const KINDS: [Kind; 3] =
        [Kind::Hello, Kind::Answer { knows: false }, Kind::Answer { knows: true }];

    #[test]
    fn a_message_is_read_as_it_was_written() {
        for kind in KINDS {
            for name in ["n", "node-1.example.com", &"x".repeat(LONGEST_NAME)] {
                let message = message(kind, name);
                let bytes = message.encode().expect("a name");
                assert_eq!(Message::decode(&bytes), Ok(message));
            }
        }
    }

    #[test]
    fn no_message_has_a_name_that_no_node_has() {
        for name in ["", "Node", "a b", "a\n", "é", &"x".repeat(LONGEST_NAME + 1)] {
            assert_eq!(message(Kind::Hello, name).encode(), None, "{name}");
        }
        let mut bytes = message(Kind::Hello, "n").encode().expect("a name");
        bytes[11] = b'\n';
        assert_eq!(Message::decode(&bytes), Err(NoMessage::Garbage));
    }

    #[test]
    fn a_message_of_another_version_is_told_from_garbage() {
        let mut bytes = message(Kind::Hello, "n").encode().expect("a name");
        for version in (0..=u8::MAX).filter(|version| *version != VERSION) {
            bytes[8] = version;
            assert_eq!(Message::decode(&bytes), Err(NoMessage::Version));
            assert_eq!(Message::decode(&bytes[..9]), Err(NoMessage::Version));
        }
        assert_eq!(Message::decode(&bytes[..8]), Err(NoMessage::Garbage));
    }

    #[test]
    fn no_other_length_is_a_message() {
        let bytes = message(Kind::Hello, "n").encode().expect("a name");
        for length in 0..LENGTH {
            assert_eq!(Message::decode(&bytes[..length]), Err(NoMessage::Garbage), "{length}");
        }
        assert_eq!(Message::decode(&[&bytes[..], &[0]].concat()), Err(NoMessage::Garbage));
    }

    #[test]
    fn what_is_read_is_written_as_the_same_bytes_whatever_byte_differs() {
        let bytes = message(KINDS[2], "node").encode().expect("a name");
        for place in 0..LENGTH {
            for value in 0..=u8::MAX {
                let mut other = bytes;
                other[place] = value;
                if let Ok(read) = Message::decode(&other) {
                    assert_eq!(read.encode(), Some(other), "{value} at {place}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Message::decode(&bytes);
            let _ = Message::decode(&[&MAGIC[..], &[VERSION], &bytes].concat());
        }
    }
}
