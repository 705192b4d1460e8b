//! Connected sockets whose endpoint serves no more are ended.
//!
//! An application that holds a connected UDP socket to a Service (a DNS client, above all) never
//! hears that its endpoint is gone: its datagrams go nowhere, for as long as it keeps the socket. So
//! the agent ends the socket, as `ss --kill` does (`SOCK_DESTROY`): the next call says
//! `ECONNABORTED`, and the application connects anew.
//!
//! | file | idea |
//! |---|---|
//! | `message` | sock_diag's messages: what is asked, what is answered |
//! | `diag` | a netlink socket that carries them, in one network namespace |
//! | `namespace` | the network namespaces of the cgroup's processes |
//! | `holder` | sockets by the processes that hold them |
//! | `stale` | which sockets are to be ended: pure |
//! | `terminator` | the thread that ends them, beside the agent task |
//!
//! Only a socket is ended that this agent's programs have translated from one of the Service's
//! frontends to the endpoint, that is still connected to it, and that some process holds. So says the
//! socket's own storage (`connected4`, `connected6`), which is read through a descriptor of the
//! socket, borrowed from its process (`pidfd_getfd`). sock_diag would show it beside a TCP socket, but
//! not beside a UDP one. The socket is named by its cookie: none that took its place is hit.

mod diag;
mod holder;
mod message;
mod namespace;
mod stale;
pub mod terminator;
