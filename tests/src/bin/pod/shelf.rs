//! Sockets that no process has open, like the kernel's own: in transit (unix(7), `SCM_RIGHTS`).

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use topo_lb_tests::traffic::{Failure, Step, Via};

use crate::exchange::{Open, at};

/// A socket in transit.
#[derive(Debug)]
pub(crate) struct Shelved {
    /// Must stay open while the socket is in transit.
    _from: UnixStream,
    to: UnixStream,
    via: Via,
}

impl Shelved {
    pub(crate) fn shelve(open: Open) -> Result<Self, Failure> {
        let (socket, via) = open.into_parts();
        let (from, to) = UnixStream::pair().map_err(at(Step::Socket))?;
        send(&from, &socket).map_err(at(Step::Send))?;
        Ok(Self { _from: from, to, via })
    }

    pub(crate) fn unshelve(self) -> Result<Open, Failure> {
        Ok(Open::of(receive(&self.to).map_err(at(Step::Receive))?, self.via))
    }
}

fn send(through: &UnixStream, socket: &OwnedFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = SendAncillaryBuffer::new(&mut space);
    let descriptors = [socket.as_fd()];
    message.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(through, &[IoSlice::new(b"x")], &mut message, SendFlags::empty())?;
    Ok(())
}

fn receive(through: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut message = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(through, &mut [IoSliceMut::new(&mut byte)], &mut message, RecvFlags::CMSG_CLOEXEC)?;
    message
        .drain()
        .find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        })
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}
