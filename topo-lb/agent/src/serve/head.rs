//! Reads the head of a request. A connection that has sent nothing has no buffer.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// Most bytes of a head.
pub(super) const LONGEST: usize = 8 * 1024;

/// Why no head was read.
#[derive(Debug)]
pub(super) enum NoHead {
    /// The peer closed the connection, or it broke.
    Closed,
    /// It is longer than [`LONGEST`].
    TooLong,
}

impl From<io::Error> for NoHead {
    fn from(_: io::Error) -> Self {
        Self::Closed
    }
}

/// Reads into `head` until the empty line that ends it. Bytes after that line may be in it, too.
pub(super) async fn read(
    stream: &mut (impl AsyncRead + Unpin),
    head: &mut Vec<u8>,
) -> Result<(), NoHead> {
    loop {
        let known = head.len();
        let count = poll_fn(|context| {
            // On the stack: a waiting connection holds no buffer.
            let mut chunk = [0; 2048];
            let mut chunk = ReadBuf::new(&mut chunk);
            ready!(Pin::new(&mut *stream).poll_read(context, &mut chunk))?;
            let mut bytes = chunk.filled();
            if head.is_empty() {
                // Empty lines before a request are ignored (RFC 9112, 2.2).
                let blank = bytes.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
                bytes = &bytes[blank..];
            }
            head.reserve_exact(bytes.len());
            head.extend_from_slice(bytes);
            Poll::Ready(io::Result::Ok(chunk.filled().len()))
        })
        .await?;
        if count == 0 {
            return Err(NoHead::Closed);
        }
        if has_end(&head[known.saturating_sub(3)..]) {
            return Ok(());
        }
        if head.len() > LONGEST {
            return Err(NoHead::TooLong);
        }
    }
}

fn has_end(bytes: &[u8]) -> bool {
    bytes.windows(4).any(|four| four == b"\r\n\r\n") || bytes.windows(2).any(|two| two == b"\n\n")
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// The result of reading these pieces, one after the other.
    async fn read_from(pieces: &[&[u8]]) -> (Result<(), NoHead>, Vec<u8>) {
        let (mut ours, mut theirs) = tokio::io::duplex(64);
        let pieces: Vec<Vec<u8>> = pieces.iter().map(|piece| piece.to_vec()).collect();
        tokio::spawn(async move {
            for piece in pieces {
                // The reader stops after an error.
                let _ = theirs.write_all(&piece).await;
            }
        });
        let mut head = Vec::new();
        let result = read(&mut ours, &mut head).await;
        (result, head)
    }

    #[tokio::test]
    async fn a_head_ends_with_an_empty_line_wherever_it_is_cut() {
        let whole = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n";
        for cut in 1..whole.len() {
            let (first, second) = whole.split_at(cut);
            let (result, head) = read_from(&[first, second]).await;
            assert!(result.is_ok() && head == whole, "{cut}: {result:?} {head:?}");
        }
        let bare = b"GET /livez HTTP/1.0\n\n";
        let (result, head) = read_from(&[b"\r\n\r\n", bare]).await;
        assert!(result.is_ok() && head == bare, "{result:?} {head:?}");
    }

    #[tokio::test]
    async fn no_end_is_no_head() {
        let (result, _) = read_from(&[b"GET /livez HTTP/1.1\r\n"]).await;
        assert!(matches!(result, Err(NoHead::Closed)), "{result:?}");
        let long = vec![b'a'; 4 * LONGEST];
        let (result, head) = read_from(&[b"GET /", &long]).await;
        assert!(matches!(result, Err(NoHead::TooLong)), "{result:?}");
        assert!(head.len() < 2 * LONGEST, "{} bytes are held", head.len());
    }
}
