//! The verdict on a packet of tc.

use aya_ebpf::bindings::{TC_ACT_REDIRECT, TC_ACT_SHOT, TC_ACT_UNSPEC};

/// What a function says of a packet: the program's verdict, or the next step of the program, which
/// the kernel never sees.
#[repr(i32)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Verdict: the next program of the hook gets the packet, changed or not. The number is the same
    /// for tcx (`TCX_NEXT`) and for clsact.
    Next = TC_ACT_UNSPEC,
    /// Verdict: the kernel drops the packet.
    Drop = TC_ACT_SHOT,
    /// Verdict: the packet goes where `bpf_redirect` has said.
    Redirect = TC_ACT_REDIRECT,
    /// Step: choose an endpoint.
    ChooseEndpoint = 100,
    /// Step: translate an ICMP error.
    IcmpError = 101,
    /// Step: refuse by a RST.
    Reset = 102,
    /// Step: refuse by an ICMP error.
    Unreachable = 103,
    /// Step: remember where replies go.
    ExpectReplies = 104,
    /// Step: translate; the connection is known, and its endpoint is checked.
    Translate = 105,
    /// Step: look at a packet without a connection.
    Stray = 106,
    /// Step: leave the fragments alone that follow this first one.
    LeaveFragments = 107,
    /// Step: check the endpoint of the connection.
    CheckEndpoint = 108,
}
