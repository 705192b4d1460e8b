//! The verdict on a packet of tc, and what its destination says at first sight.

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC};
use topo_lb_common::packets::Outcome;

/// What a function decides about a packet: the program's verdict, or the program's next step, which
/// the kernel never sees.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Verdict: the next program of the hook gets the packet, changed or not. The number is the
    /// same for tcx (`TCX_NEXT`) and for clsact.
    Next = TC_ACT_UNSPEC,
    /// Verdict: the kernel drops the packet.
    Drop = TC_ACT_SHOT,
    /// Verdict: the packet goes to the target of `bpf_redirect`.
    Redirect = TC_ACT_REDIRECT,
    /// Step: choose an endpoint.
    ChooseEndpoint = 100,
    /// Step: translate an ICMP error.
    IcmpError = 101,
    /// Step: refuse by a RST.
    Reset = 102,
    /// Step: refuse by an ICMP error.
    Unreachable = 103,
    /// Step: write the entry for the replies.
    ExpectReplies = 104,
    /// Step: translate; the connection is known, and its endpoint has been checked.
    Translate = 105,
    /// Step: handle a packet without a connection.
    Stray = 106,
    /// Step: leave the later fragments of this first one untouched.
    LeaveFragments = 107,
    /// Step: check the endpoint of the connection.
    CheckEndpoint = 108,
    /// Step: move the connection to the established ones.
    Establish = 109,
    /// Step: record what the packet changes in its connection's state.
    Note = 110,
    /// Step: record it before the packet's connection is looked up to translate.
    NoteFirst = 113,
    /// Step: the packet has ended its connection, or answered a datagram; then translate.
    Leave = 118,
    /// Step: forget the packet's connection, or another one that leaves it no room.
    Forget = 111,
    /// Step: choose the source of a packet to another node.
    ChooseSource = 112,
    /// Step: handle a datagram that this node sends from a port of the programs, or of a frontend.
    LeaveFromOwn = 114,
    /// Step: choose an endpoint; the client's own port is taken at the former one.
    ChooseAnother = 115,
    /// Step: open a connection to an endpoint itself, if another one has its port there.
    OpenDirect = 117,
    /// Step: choose the node to which packets of a flow are sent on.
    ChooseHop = 119,
    /// Step: send the packet on to the node that is chosen.
    SendHop = 121,
    /// Step: send an ICMP error on to the node of the endpoint.
    HopError = 120,
    /// Step: leave the segment of another connection untouched.
    Meet = 116,
}

/// What a packet's destination says.
pub(crate) enum Filtered {
    /// Perhaps to a Service, about a connection to one, or a reply that turns.
    Service,
    /// No Service; it may begin a connection to an endpoint that has others through a frontend.
    Direct,
    /// Perhaps a probe of another agent.
    Probe,
    /// None of these.
    Other(Outcome),
}
