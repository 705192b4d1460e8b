//! The tc hooks: in which order the steps handle a packet of a client that has no socket on this node.

use aya_ebpf::bindings::__sk_buff;
use topo_lb_common::packets::Outcome;
use topo_lb_common::snat::is_source_port;

use crate::base::family::{V4, V6};
use crate::base::header::Read as _;
use crate::base::maps::SERVES_ALL_FRONTENDS;
use crate::base::transport::split_ports;
use crate::decide::frontend_filter::{has_bit, in_range};
use crate::decide::trace::is_on;
use crate::packet::collision;
use crate::packet::note;
use crate::packet::onward;
use crate::packet::outcomes::{Hook, dropped, next};
use crate::packet::outside::{Clients, enter, is_for_another_host, is_stray};
use crate::packet::port::PORT_ATTEMPTS;
use crate::packet::probe;
use crate::packet::reply_filter::is_no_endpoint;
use crate::packet::steps::Steps;
use crate::packet::tc::{Done, Translate, may_be_own};
use crate::packet::verdict::{Filtered, Verdict};

/// Handles a packet that a device has received.
#[inline(always)]
pub(crate) fn ingress(skb: *mut __sk_buff, clients: Clients) -> i32 {
    enter(skb, clients);
    let verdict = match ether_type(skb) {
        V4::ETHER_TYPE => ingress_of::<V4>(skb, clients),
        V6::ETHER_TYPE => ingress_of::<V6>(skb, clients),
        _ => next(Hook::Ingress, Outcome::Untouched),
    };
    #[cfg(feature = "log")]
    crate::decide::log::packet(skb, true, verdict as i32);
    verdict as i32
}

#[inline(always)]
fn ingress_of<F: Translate + Steps>(skb: *mut __sk_buff, clients: Clients) -> Verdict {
    let mut verdict = match filter::<F>(skb, clients) {
        // Nobody's, also if the address is a frontend: another host's programs handle it.
        Filtered::Service | Filtered::Direct
            if clients == Clients::Outside && is_for_another_host(skb) =>
        {
            return next(Hook::Ingress, Outcome::Untouched);
        }
        Filtered::Service => F::from_client(skb, Done::Nothing),
        Filtered::Direct => Verdict::OpenDirect,
        Filtered::Probe => match F::hear(skb) {
            Verdict::Translate => F::from_client(skb, Done::Nothing),
            verdict => return verdict,
        },
        Filtered::Other(outcome) => return next(Hook::Ingress, outcome),
    };
    // The verdict on most packets: they pay for no comparison with the steps below.
    if verdict == Verdict::Next {
        return verdict;
    }
    if verdict == Verdict::NoteFirst {
        note_state::<F>(skb, Hook::Ingress);
        verdict = F::from_client(skb, Done::Note);
        if verdict == Verdict::Next {
            return verdict;
        }
    }
    if verdict == Verdict::Establish {
        F::establish(skb);
        verdict = F::from_client(skb, Done::Establish);
        if verdict == Verdict::Next {
            return verdict;
        }
    }
    if verdict == Verdict::Note {
        verdict = note_state::<F>(skb, Hook::Ingress);
    }
    if verdict == Verdict::CheckEndpoint {
        verdict = F::reconsider(skb);
    } else if verdict == Verdict::Forget {
        verdict = F::forget(skb, Hook::Ingress);
    }
    if matches!(verdict, Verdict::ChooseEndpoint | Verdict::Stray) && onward::may_be(skb) {
        verdict = F::send_known(skb, false);
        if verdict == Verdict::ChooseHop {
            note::begin(skb);
            verdict = F::choose_hop(skb);
            if verdict == Verdict::SendHop {
                verdict = F::send_known(skb, true);
            }
            if is_on() && verdict == Verdict::Redirect && note::is_noted(skb) {
                F::tell(skb);
            }
        }
        if verdict == Verdict::Redirect {
            return verdict;
        }
    }
    let has_met = verdict == Verdict::ChooseAnother;
    if verdict == Verdict::ChooseEndpoint || has_met {
        note::begin(skb);
        verdict = F::open(skb);
        let opens = matches!(verdict, Verdict::ChooseSource | Verdict::ExpectReplies);
        if opens {
            make_room::<F>(skb);
        }
        if verdict == Verdict::ChooseSource {
            verdict = F::choose_source(skb);
        }
        verdict = choose_port::<F>(skb, verdict, has_met);
        if is_on() && note::is_noted(skb) {
            if opens && verdict == Verdict::Drop {
                note::drop(skb);
            }
            F::tell(skb);
        }
    }
    if verdict == Verdict::OpenDirect {
        verdict = F::open_direct(skb);
        if verdict == Verdict::ExpectReplies {
            make_room::<F>(skb);
        }
        verdict = choose_port::<F>(skb, verdict, true);
    }
    if verdict == Verdict::Note {
        verdict = note_state::<F>(skb, Hook::Ingress);
    }
    if verdict == Verdict::Translate {
        verdict = F::from_client(skb, Done::All);
    }
    if verdict == Verdict::Stray {
        verdict = F::stray(skb);
    }
    match verdict {
        // The entry that was just written is already forgotten, or over.
        Verdict::ChooseEndpoint | Verdict::Forget => dropped(Hook::Ingress),
        Verdict::LeaveFragments => F::leave_fragments(skb, Hook::Ingress),
        Verdict::IcmpError => match F::error_from_client(skb) {
            Verdict::HopError => match F::send_error(skb) {
                Verdict::ChooseHop => F::choose_for_error(skb),
                verdict => verdict,
            },
            verdict => verdict,
        },
        Verdict::Reset => F::reset(skb, Hook::Ingress),
        Verdict::Unreachable => F::unreachable(skb),
        verdict => verdict,
    }
}

/// Counts a connection that a packet has just opened, and forgets another one if there is no room for it.
#[inline(always)]
fn make_room<F: Steps>(skb: *mut __sk_buff) {
    let lacks_room = F::replace_oldest(skb) == Verdict::Forget;
    F::wait(skb, lacks_room);
}

/// Writes the entry for the replies to a packet, if `verdict` says so. `is_taken`: the client's own port is
/// taken at the endpoint, which is what the first attempt tries.
#[inline(always)]
fn choose_port<F: Steps>(skb: *mut __sk_buff, mut verdict: Verdict, is_taken: bool) -> Verdict {
    for attempt in 0..PORT_ATTEMPTS {
        if verdict != Verdict::ExpectReplies {
            break;
        }
        verdict = F::expect_replies(skb, attempt | u32::from(is_taken));
    }
    verdict
}

/// Records what a packet changes in the state of its connection.
#[inline(always)]
fn note_state<F: Steps>(skb: *mut __sk_buff, hook: Hook) -> Verdict {
    match F::note(skb, hook) {
        Verdict::Leave => F::leave(skb, hook),
        verdict => verdict,
    }
}

/// Recognises most packets that are not to a Service.
#[inline(always)]
fn filter<F: Translate + Steps>(skb: *mut __sk_buff, clients: Clients) -> Filtered {
    // Clients outside are served with all frontends alone. The summary is read twice in the code, as it would be
    // on the stack while the range is looked up.
    if clients == Clients::Guests && SERVES_ALL_FRONTENDS.load() == 0 {
        if F::destination(skb).is_some_and(in_range::<F>) {
            return Filtered::Service;
        }
        return match F::summary(skb) {
            Some(packet) => collision::filter::<F>(skb, &packet),
            None => Filtered::Service,
        };
    }
    let Some(packet) = F::summary(skb) else { return Filtered::Service };
    let (destination, (_, port)) = (packet.destination, split_ports(packet.ports));
    let is_reply = || {
        clients == Clients::Outside
            && is_source_port(port)
            && F::look_for_reply(skb) == Verdict::Translate
    };
    if clients == Clients::Outside && probe::may_be(&packet) {
        Filtered::Probe
    } else if has_bit::<F>(destination, port) || is_reply() {
        Filtered::Service
    } else {
        collision::filter::<F>(skb, &packet)
    }
}

/// Handles a packet that a device is about to send.
#[inline(always)]
pub(crate) fn egress(skb: *mut __sk_buff, clients: Clients) -> i32 {
    enter(skb, clients);
    let verdict = match ether_type(skb) {
        V4::ETHER_TYPE => egress_of::<V4>(skb, clients),
        V6::ETHER_TYPE => egress_of::<V6>(skb, clients),
        _ => next(Hook::Egress, Outcome::Untouched),
    };
    #[cfg(feature = "log")]
    crate::decide::log::packet(skb, false, verdict as i32);
    verdict as i32
}

#[inline(always)]
fn egress_of<F: Translate + Steps>(skb: *mut __sk_buff, clients: Clients) -> Verdict {
    if is_stray(skb) {
        let verdict = F::leave_stray(skb);
        return if verdict == Verdict::Reset { F::reset(skb, Hook::Egress) } else { verdict };
    }
    // The summary suffices to see that most packets are no replies to translated connections.
    if let Some(packet) = F::summary(skb) {
        let (port, _) = split_ports(packet.ports);
        if is_no_endpoint::<F>(packet.source, port) {
            let (protocol, source) = (packet.protocol, packet.source);
            return if clients == Clients::Outside && may_be_own::<F>(skb, protocol, source, port) {
                F::leave_from_own(skb)
            } else {
                next(Hook::Egress, Outcome::Untouched)
            };
        }
    }
    let mut verdict = F::to_client(skb, false);
    if verdict == Verdict::Next {
        return verdict;
    }
    if verdict == Verdict::LeaveFromOwn {
        verdict = F::leave_from_own(skb);
    }
    if verdict == Verdict::Note {
        verdict = note_state::<F>(skb, Hook::Egress);
        if verdict == Verdict::Translate {
            verdict = F::to_client(skb, true);
        }
    }
    if verdict == Verdict::Meet {
        verdict = F::meet(skb);
    }
    // The client's port is that of another connection now, also for later packets.
    if verdict == Verdict::Forget {
        verdict = F::forget(skb, Hook::Egress);
    }
    match verdict {
        Verdict::LeaveFragments => F::leave_fragments(skb, Hook::Egress),
        Verdict::IcmpError => F::error_to_client(skb),
        verdict => verdict,
    }
}

/// The EtherType, host order. With a VLAN tag in the packet's bytes, the type of that tag.
#[inline(always)]
fn ether_type(skb: *mut __sk_buff) -> u16 {
    // SAFETY: a field of the hook's context: a word with the value in its lower half, in network
    // order.
    u16::from_be(unsafe { (&raw const (*skb).protocol).read_volatile() } as u16)
}
