//! Hears of new connections from the kernel's connection tracking: one message for each, none for packets.

use std::collections::HashMap;
use std::fs::read_to_string;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, mem, thread};

use netlink_bindings::conntrack::Nfgenmsg;
use rustix::io::Errno;
use rustix::net::netlink::NETFILTER;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{RecvFlags, recv};
use tracing::warn;

use super::Connection;
use crate::netlink::{self, Netlink};
use topo_lb_core::once::Once;

/// Whether connection tracking tells of new connections; it is not there without the module.
const EVENTS: &str = "/proc/sys/net/netfilter/nf_conntrack_events";
/// `NFNL_SUBSYS_CTNETLINK << 8`, and the messages `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_GET_STATS`.
const NEW: u16 = 1 << 8;
const GET_STATS: u16 = 1 << 8 | 5;
/// `1 << (NFNLGRP_CONNTRACK_NEW - 1)`.
const GROUP: u32 = 1;
/// Room for messages that wait: some 10,000 connections.
const WAITING: usize = 8 << 20;
/// Most different connections between two looks of the agent task. More are lost, and counted.
const MOST: usize = 65_536;
const BUFFER: usize = 64 * 1024;

/// Why the kernel does not tell of connections.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// There is no connection tracking in this network namespace.
    #[error(
        "the kernel does not track connections here ({EVENTS}: {0}): does a kube-proxy that uses iptables, \
         ipvs or nftables run, and the agent in the host's network namespace?"
    )]
    NoTracking(io::Error),
    /// It is told not to.
    #[error("net.netfilter.nf_conntrack_events is 0: set it to 1")]
    Silent,
    /// It cannot be asked.
    #[error(
        "connection tracking does not answer: {0}; it takes CAP_NET_ADMIN and nf_conntrack_netlink"
    )]
    Netlink(#[from] io::Error),
}

/// The connections since the last look, each with how often there was one like it.
#[derive(Clone, Debug, Default)]
pub struct Listener(Arc<Mutex<HashMap<Connection, u64>>>);

impl Listener {
    /// Starts to listen, on a thread of its own. `overruns` counts what it could not keep.
    ///
    /// # Errors
    /// The kernel does not tell of connections.
    pub fn start(overruns: Arc<AtomicU64>) -> Result<Self, ListenError> {
        let is_on = read_to_string(EVENTS).map_err(ListenError::NoTracking)?;
        if is_on.trim() == "0" {
            return Err(ListenError::Silent);
        }
        // Loads the module, and fails where joining its group would not.
        let flags = libc::NLM_F_ACK as u16;
        let statistics = netlink::request(GET_STATS, flags, Nfgenmsg::new().as_slice());
        Netlink::open(Some(NETFILTER))?.ask(&statistics, |_, _| {})?;
        let socket = netlink::listen(Some(NETFILTER), GROUP)?;
        set_socket_recv_buffer_size_force(&socket, WAITING).map_err(io::Error::from)?;
        rustix::io::ioctl_fionbio(&socket, false).map_err(io::Error::from)?;
        let listener = Self::default();
        let heard = listener.clone();
        thread::Builder::new()
            .name("observer".into())
            .spawn(move || heard.hear(&socket, &overruns))?;
        Ok(listener)
    }

    /// Takes the connections since the last look.
    #[must_use]
    pub fn take(&self) -> HashMap<Connection, u64> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn hear(&self, socket: &OwnedFd, overruns: &AtomicU64) {
        let mut overrun = Once::new();
        let mut buffer = vec![0; BUFFER];
        loop {
            match recv(socket, &mut buffer[..], RecvFlags::empty()) {
                Ok((length, _)) => {
                    let mut heard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
                    netlink::notifications(&buffer[..length], |kind, body| {
                        let Some(connection) = Connection::read(body).filter(|_| kind == NEW)
                        else {
                            return;
                        };
                        if heard.len() < MOST || heard.contains_key(&connection) {
                            *heard.entry(connection).or_default() += 1;
                        } else {
                            overruns.fetch_add(1, Relaxed);
                        }
                    });
                }
                Err(Errno::INTR) => {}
                Err(Errno::NOBUFS) => {
                    overruns.fetch_add(1, Relaxed);
                    if overrun.begins(()) {
                        warn!(
                            "there were more new connections than the agent could read: some are \
                             not observed (topo_lb_observer_overruns_total)"
                        );
                    }
                }
                Err(error) => {
                    warn!("connections are not observed any more: {error}; restart the agent");
                    return;
                }
            }
        }
    }
}
