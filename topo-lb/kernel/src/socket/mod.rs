//! Ends connected sockets to endpoints that are gone, and sockets that connected too early.
//!
//! An application with a connected UDP socket to a Service (above all a DNS client) does not notice
//! that its endpoint is gone: its datagrams are lost for as long as it keeps the socket. So the
//! agent ends the socket, as `ss --kill` does (`SOCK_DESTROY`): a call that receives or waits fails with
//! `ECONNABORTED`, one that sends with `EDESTADDRREQ`, and the application connects anew.
//!
//! A UDP socket that connected to a ClusterIP before this node's programs knew it sends to an address
//! that nobody has. Where no other proxy takes its datagrams (`--kube-proxy-replacement`, and nothing of
//! kube-proxy on the host), it is ended as soon as the ClusterIP has an endpoint.
//!
//! | file | idea |
//! |---|---|
//! | `message` | sock_diag's messages |
//! | `diag` | a netlink socket for them, in one network namespace |
//! | `namespace` | the network namespaces of the cgroup's processes |
//! | `rest` | whether a TCP connection is at rest: pure |
//! | `search` | finds connections to a wider tier |
//! | `homeward` | ends idle ones of them that are to return to a nearer tier |
//! | `tally` | counts them, also where they need not return |
//! | `holder` | finds the processes that hold sockets; also for `topo-lb list` |
//! | `obstacle` | what keeps the agent from sockets |
//! | `stale` | selects the sockets to be ended: pure |
//! | `terminator` | the thread that ends sockets |
//!
//! The agent ends a socket to an endpoint that is gone only if its programs translated it from one of the Service's frontends
//! to the endpoint, it is still connected to that endpoint, and some process holds it. The socket's
//! own storage (`connected4`, `connected6`) shows the translation. It is read through a descriptor
//! borrowed from the socket's process (`pidfd_getfd`): sock_diag shows the storage of TCP sockets,
//! but not of UDP sockets. The socket is identified by its cookie, so no later socket is ended by
//! mistake.
//!
//! A connection that is to **return to a nearer tier** ends otherwise: it works, so nothing may be lost. The agent
//! closes it in both directions (`shutdown`) while it is at rest, on a duplicate of its descriptor. The kernel sends
//! a FIN, the application reads the end of the stream, as of a server that closes an idle connection, and what it
//! writes later fails with `EPIPE` and reaches nobody.

mod diag;
pub mod holder;
pub mod homeward;
mod message;
mod namespace;
pub mod obstacle;
mod rest;
mod search;
mod stale;
mod tally;
pub mod terminator;
