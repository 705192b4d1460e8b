//! Moves bytes through an open TCP socket, and counts them.

use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::time::Duration;

use socket2::Socket;
use topo_lb_tests::transfer::{Ending, Moved};

/// Posts so many bytes to the server, and reads them back.
pub(crate) fn echo(mut socket: &Socket, bytes: usize) -> io::Result<Moved> {
    let mut request =
        format!("POST /echo HTTP/1.1\r\nHost: lab\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
    request.resize(request.len() + bytes, b'x');
    socket.write_all(&request)?;
    let (mut answer, mut chunk, mut whole) = (Vec::new(), vec![0; 1 << 16], None);
    while whole.is_none_or(|whole| answer.len() < whole) {
        let count = socket.read(&mut chunk)?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&chunk[..count]);
        if whole.is_none() {
            let head = answer.windows(4).position(|four| four == b"\r\n\r\n");
            whole = head.map(|head| head + 4 + bytes);
        }
    }
    Ok(Moved { written: request.len() as u64, read: answer.len() as u64 })
}

/// Ends a connection. Returns how many bytes the client still read.
pub(crate) fn end(mut socket: Socket, ending: Ending) -> io::Result<u64> {
    match ending {
        Ending::Close => Ok(0),
        Ending::HalfClose => {
            socket.shutdown(Shutdown::Write)?;
            io::copy(&mut socket, &mut io::sink())
        }
        Ending::Reset => socket.set_linger(Some(Duration::ZERO)).map(|()| 0),
    }
}
