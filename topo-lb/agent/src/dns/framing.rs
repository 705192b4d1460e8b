//! Messages in a stream: each has its length before it (RFC 1035, section 4.2.2). Pure.

/// Bytes that are read at once.
const PIECE: usize = 16 * 1024;

/// A message with its length before it; `None` if it is too long for that.
#[must_use]
pub fn framed(message: &[u8]) -> Option<Vec<u8>> {
    let length = u16::try_from(message.len()).ok()?;
    Some([&length.to_be_bytes()[..], message].concat())
}

/// What was read and is not a whole message yet.
#[derive(Debug, Default)]
pub struct Messages(Vec<u8>);

impl Messages {
    /// The next message, with its length before it.
    pub fn take(&mut self) -> Option<Vec<u8>> {
        let length = usize::from(u16::from_be_bytes(*self.0.first_chunk()?)) + 2;
        if self.0.len() < length {
            return None;
        }
        let rest = self.0.split_off(length);
        Some(std::mem::replace(&mut self.0, rest))
    }

    /// What is left: no whole message.
    #[must_use]
    pub fn rest(&self) -> &[u8] {
        &self.0
    }

    /// Where more is read to. It has at most one message and a piece.
    pub fn room(&mut self) -> &mut Vec<u8> {
        self.0.reserve(PIECE);
        &mut self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_whole_however_they_are_cut() {
        let stream = [&[0, 3][..], b"abc", &[0, 0], &[0, 2], b"de", &[0, 9], b"f"].concat();
        for cut in 1..=stream.len() {
            let (mut messages, mut all) = (Messages::default(), Vec::new());
            for piece in stream.chunks(cut) {
                messages.room().extend_from_slice(piece);
                all.extend(std::iter::from_fn(|| messages.take()));
            }
            assert_eq!(all, [b"\0\x03abc".to_vec(), b"\0\0".to_vec(), b"\0\x02de".to_vec()]);
            assert_eq!(messages.rest(), b"\0\x09f");
            assert_eq!(framed(b"abc").as_deref(), Some(&b"\0\x03abc"[..]));
        }
    }
}
