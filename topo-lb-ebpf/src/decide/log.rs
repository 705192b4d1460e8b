//! What the programs say to who develops them. Only in an object with the feature `log`, which libbpf refuses:
//! aya-log's map is of the old kind.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::programs::TcContext;
use aya_log_ebpf::{debug, info};
use topo_lb_common::trace::Outcome;

use crate::base::family::Family;
use crate::decide::decision::{Dialled, Words};

/// Says what was decided about a new connection.
#[inline(always)]
pub(crate) fn decided<F: Family>(context: &impl Sized, words: &Words, dialled: &Dialled<F>) {
    let [_, outcome, tier, _] = words.bytes.to_ne_bytes();
    let (frontend, port) = (shown::<F>(F::halves(dialled.frontend.0)), dialled.frontend.1);
    let (service, to_port) = (words.service as u32, (words.service >> 32) as u16);
    match Outcome::from_byte(outcome) {
        Some(Outcome::Routed) => {
            let to = shown::<F>([words.head, words.tail]);
            info!(
                context,
                "{:i} {} (protocol {}, Service {}, tier {}): routed to {:i} {}",
                frontend,
                port,
                dialled.protocol,
                service,
                tier,
                to,
                to_port
            );
        }
        Some(Outcome::Refused) => {
            info!(context, "{:i} {} (Service {}): refused", frontend, port, service);
        }
        Some(Outcome::Bypassed) => {
            info!(context, "{:i} {} (Service {}): bypassed", frontend, port, service);
        }
        _ => info!(context, "{:i} {} (Service {}): dropped", frontend, port, service),
    }
}

/// Says what becomes of a packet, as a verdict of tc.
#[inline(never)]
pub(crate) fn packet(skb: *mut __sk_buff, is_ingress: bool, verdict: i32) {
    let context = TcContext::new(skb);
    // SAFETY: a field of the hook's context.
    let device = unsafe { (&raw const (*skb).ifindex).read_volatile() };
    if is_ingress {
        debug!(&context, "device {} has received a packet: {}", device, verdict);
    } else {
        debug!(&context, "device {} sends a packet: {}", device, verdict);
    }
}

/// An address as IPv6; an IPv4 one is mapped.
#[inline(always)]
fn shown<F: Family>([head, tail]: [u64; 2]) -> [u8; 16] {
    let mut address = [0; 16];
    if F::IS_V6 {
        address[..8].copy_from_slice(&head.to_ne_bytes());
        address[8..].copy_from_slice(&tail.to_ne_bytes());
    } else {
        address[10..12].copy_from_slice(&[0xff, 0xff]);
        address[12..].copy_from_slice(&head.to_ne_bytes()[..4]);
    }
    address
}
