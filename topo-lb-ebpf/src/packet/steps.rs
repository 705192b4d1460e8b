//! The steps of tc's programs: global functions.
//!
//! The verifier checks a global function once, by itself, for any arguments; it would walk through
//! another function at each call, once for every state that it is called in (51c39bb1d5d1, "bpf:
//! Introduce function-by-function verification", Linux 5.6). The kernel calls both alike. A global
//! function has a name of its own and no parameters of type, so each step is here for each family.

use aya_ebpf::bindings::__sk_buff;

use crate::base::family::{V4, V6};
use crate::packet::outcomes::Hook;
use crate::packet::tc::Done;
use crate::packet::verdict::Verdict;
use crate::packet::{collision, fragment, hop, icmp, over, probe, refuse, snat, tc, trace};

macro_rules! steps {
    ($(
        $(#[$doc:meta])*
        $step:ident, $four:ident, $six:ident: $room:ident::$function:ident $(, $argument:ident: $kind:ty)?;
    )*) => {
        /// The steps of an address family.
        pub(crate) trait Steps {
            $($(#[$doc])* fn $step(skb: *mut __sk_buff $(, $argument: $kind)?) -> Verdict;)*
        }
        steps!(V4: $($step, $four: $room::$function $(, $argument: $kind)?;)*);
        steps!(V6: $($step, $six: $room::$function $(, $argument: $kind)?;)*);
    };
    ($family:ident: $(
        $step:ident, $global:ident: $room:ident::$function:ident $(, $argument:ident: $kind:ty)?;
    )*) => {
        impl Steps for $family {
            $(
                #[inline(always)]
                fn $step(skb: *mut __sk_buff $(, $argument: $kind)?) -> Verdict {
                    $global(skb $(, $argument)?)
                }
            )*
        }
        $(
            #[unsafe(no_mangle)]
            #[inline(never)]
            extern "C" fn $global(skb: *mut __sk_buff $(, $argument: $kind)?) -> Verdict {
                $room::$function::<$family>(skb $(, $argument)?)
            }
        )*
    };
}

steps! {
    /// Looks whether a packet that is not to a frontend may be a reply that turns.
    look_for_reply, look_for_reply4, look_for_reply6: snat::look_for_reply;
    /// Translates a packet from a client of a known connection.
    from_client, from_client4, from_client6: tc::from_client, done: Done;
    /// Translates a packet to a client if it is a reply of a known connection.
    to_client, to_client4, to_client6: tc::to_client, is_settled: bool;
    /// Records what a packet changes in the state of its connection, and a first fragment.
    note, note4, note6: tc::note, hook: Hook;
    /// Lets the connection of a packet that has ended it, or has answered a datagram, leave the table.
    leave, leave4, leave6: over::leave, hook: Hook;
    /// Forgets a packet's connection, which is over.
    forget, forget4, forget6: tc::forget, hook: Hook;
    /// Forgets the connection whose source a process of this node uses, or remembers whom it asks.
    leave_from_own, leave_from_own4, leave_from_own6: tc::leave_from_own;
    /// Opens a direct connection whose port another one has at the endpoint.
    open_direct, open_direct4, open_direct6: collision::open;
    /// Leaves a segment of a direct connection untouched.
    meet, meet4, meet6: collision::meet;
    /// Handles a packet of a connection that may need another endpoint, or has lost its own.
    reconsider, reconsider4, reconsider6: tc::reconsider;
    /// Handles a packet that neither opens a connection nor belongs to a known one.
    stray, stray4, stray6: tc::stray;
    /// Handles such a packet that leaves the node again.
    leave_stray, leave_stray4, leave_stray6: tc::leave_stray;
    /// Gives a probe to the agent.
    hear, hear4, hear6: probe::hear;
    /// Sends a packet of a known flow on to the node of its endpoint.
    send_known, send_known4, send_known6: hop::send_known, is_chosen: bool;
    /// Chooses that node for a flow.
    choose_hop, choose_hop4, choose_hop6: hop::choose;
    /// Chooses an endpoint for a packet that opens a connection.
    open, open4, open6: tc::open;
    /// Counts an opening. Without room, lets it take the place of one that is done, or of the client's oldest one.
    replace_oldest, replace_oldest4, replace_oldest6: over::replace_oldest;
    /// Has an opening wait in the queue of all, in which it may take the place of the first one.
    wait, wait4, wait6: over::wait, lacks_room: bool;
    /// Tells a tracer what was decided for a packet.
    tell, tell_packet4, tell_packet6: trace::of_packet;
    /// Chooses the source of a packet from outside whose endpoint is on another node.
    choose_source, choose_source4, choose_source6: tc::choose_source;
    /// Writes the entry for the replies to a packet after choosing its endpoint.
    expect_replies, expect_replies4, expect_replies6: tc::expect_replies, attempt: u32;
    /// Moves the connection of a packet to the established ones.
    establish, establish4, establish6: tc::establish;
    /// Forgets the translation of a datagram that had the same place a moment ago.
    leave_fragments, leave_fragments4, leave_fragments6: fragment::forget, hook: Hook;
    /// Handles an ICMP error from a client.
    error_from_client, error_from_client4, error_from_client6: icmp::from_client;
    /// Sends an ICMP error on to the node of the endpoint.
    send_error, send_error4, send_error6: icmp::send_on;
    /// Sends it on by the table.
    choose_for_error, choose_for_error4, choose_for_error6: icmp::choose;
    /// Handles an ICMP error to a client.
    error_to_client, error_to_client4, error_to_client6: icmp::to_client;
    /// Refuses a packet by a RST.
    reset, reset4, reset6: refuse::reset, hook: Hook;
    /// Refuses a packet by an ICMP error.
    unreachable, unreachable4, unreachable6: refuse::unreachable;
}
