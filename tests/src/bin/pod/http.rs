//! A minimal HTTP/1.1 client for any socket, also one that stays open.

use std::io::{self, Read, Write};

/// What a client sends.
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n";

/// Sends `GET /`, and returns how many bytes that took.
pub(crate) fn ask(mut to: impl Write) -> io::Result<u64> {
    to.write_all(REQUEST).map(|()| REQUEST.len() as u64)
}

/// Reads one response, and returns its body and the number of bytes of the whole; `None` if the response
/// is not valid.
pub(crate) fn answer(mut from: impl Read) -> io::Result<Option<(String, u64)>> {
    let mut read = Vec::with_capacity(512);
    let mut chunk = [0; 512];
    loop {
        let count = from.read(&mut chunk)?;
        if count == 0 {
            return Ok(None);
        }
        read.extend_from_slice(&chunk[..count]);
        if let Some(body) = body(&read) {
            return Ok(Some((body, read.len() as u64)));
        }
    }
}

/// The body of a complete response with status 200.
pub(crate) fn body(answer: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(answer).ok()?;
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    lines.next()?.strip_prefix("HTTP/1.1 200")?;
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    })?;
    (body.len() == length).then(|| body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_whole_however_it_is_cut() {
        struct Bytes<'a>(&'a [u8]);
        impl Read for Bytes<'_> {
            fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
                let Some((first, rest)) = self.0.split_first() else { return Ok(0) };
                to[0] = *first;
                self.0 = rest;
                Ok(1)
            }
        }
        let sent = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nx: y\r\n\r\npod";
        let whole = Some(("pod".into(), sent.len() as u64));
        assert_eq!(answer(Bytes(sent)).expect("bytes do not fail"), whole);
        assert_eq!(answer(Bytes(&sent[..40])).expect("bytes do not fail"), None);
    }

    #[test]
    fn only_200_is_an_answer() {
        assert_eq!(body(b"HTTP/1.1 404 Not Found\r\ncontent-length: 1\r\n\r\nx"), None);
    }
}
