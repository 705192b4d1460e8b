//! Tells `topo-lb trace` what was decided about a new connection.
//!
//! While nobody traces, the map `trace` is empty, and a decision costs one look-up, which the kernel
//! inlines. The rest is in global functions, as tc's [`steps`](crate::steps): a program's own size and
//! stack stay as they are. Such a function takes words only.
//!
//! | file | idea |
//! |---|---|
//! | `decision` | a decision as words, and who dialled what |
//! | `note` | what is noted in a packet's own state |
//! | `ring` | the ring buffer that the tracer reads |
//! | `socket`, `packet` | decisions for sockets; for packets |

pub(crate) mod decision;
#[path = "../packet/note.rs"]
pub(crate) mod note;
#[path = "../packet/trace.rs"]
pub(crate) mod packet;
#[path = "trace.rs"]
pub(crate) mod ring;
#[path = "../socket/trace.rs"]
pub(crate) mod socket;
