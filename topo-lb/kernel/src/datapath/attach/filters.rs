//! Filters of a device's clsact queueing discipline, as the kernel lists them.

use std::io;

use bytemuck::{Pod, Zeroable};
use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP};

use crate::datapath::direction::Direction;
use crate::netlink::{self, Netlink, attribute, head, text};

/// `TCA_KIND`, `TCA_OPTIONS`, include/uapi/linux/rtnetlink.h.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
/// `TCA_BPF_NAME`, `TCA_BPF_ID`, include/uapi/linux/pkt_cls.h.
const BPF_NAME: u16 = 7;
const BPF_ID: u16 = 11;

/// `struct tcmsg`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Message {
    family: u8,
    padding: [u8; 3],
    device: u32,
    handle: u32,
    parent: u32,
    /// The priority in the upper half, the protocol in the lower.
    info: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Filter {
    /// The kernel runs the filter with the lower priority first.
    pub(crate) priority: u16,
    pub(crate) handle: u32,
    /// For example `bpf` or `u32`, and the program's name, if any.
    pub(crate) name: String,
    /// The kernel's id of the program, if it is one of BPF.
    pub(crate) program: Option<u32>,
}

/// The filters of a device; none if it has no clsact queueing discipline.
///
/// # Errors
/// The kernel does not answer, for example because the device is gone.
pub(crate) fn of(netlink: &Netlink, device: u32, direction: Direction) -> io::Result<Vec<Filter>> {
    let mut all = Vec::new();
    netlink.ask(&request(device, direction), |kind, body| {
        if kind == libc::RTM_NEWTFILTER {
            all.extend(filter(body));
        }
    })?;
    all.sort();
    all.dedup();
    Ok(all)
}

/// Removes the clsact queueing discipline of a device.
///
/// # Errors
/// There is none, or the kernel refuses.
pub(crate) fn remove_clsact(netlink: &Netlink, device: u32) -> io::Result<()> {
    // TC_H_CLSACT, include/uapi/linux/pkt_sched.h.
    let message = Message { device, parent: 0xffff_fff1, ..Message::zeroed() };
    let request = netlink::request(libc::RTM_DELQDISC, NLM_F_ACK, bytemuck::bytes_of(&message));
    netlink.ask(&request, |_, _| {})
}

fn request(device: u32, direction: Direction) -> Vec<u8> {
    // TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS or TC_H_MIN_EGRESS), include/uapi/linux/pkt_sched.h.
    let parent = match direction {
        Direction::Ingress => 0xffff_fff2,
        Direction::Egress => 0xffff_fff3,
    };
    let message = Message { device, parent, ..Message::zeroed() };
    netlink::request(libc::RTM_GETTFILTER, NLM_F_DUMP, bytemuck::bytes_of(&message))
}

/// `None` for a message that describes a whole priority and no filter.
fn filter(body: &[u8]) -> Option<Filter> {
    let message = head::<Message>(body)?;
    if message.handle == 0 {
        return None;
    }
    let attributes = body.get(size_of::<Message>()..)?;
    let kind = text(attribute(attributes, KIND)?);
    let option = |option| attribute(attribute(attributes, OPTIONS)?, option);
    let name = match option(BPF_NAME) {
        Some(program) => format!("{kind} {}", text(program)),
        None => kind,
    };
    let program = option(BPF_ID).and_then(|id| Some(u32::from_ne_bytes(id.try_into().ok()?)));
    Some(Filter { priority: (message.info >> 16) as u16, handle: message.handle, name, program })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute_of(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = (4 + value.len()) as u16;
        let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    fn body(handle: u32) -> Vec<u8> {
        let message = Message { handle, info: 7 << 16 | 0x0300, ..Message::zeroed() };
        let options =
            [attribute_of(BPF_NAME, b"to_pod\0"), attribute_of(BPF_ID, &41_u32.to_ne_bytes())]
                .concat();
        [
            bytemuck::bytes_of(&message),
            &attribute_of(KIND, b"bpf\0"),
            &attribute_of(OPTIONS | 0x8000, &options),
        ]
        .concat()
    }

    #[test]
    fn a_filter_has_a_priority_a_handle_a_name_and_a_program() {
        let name = "bpf to_pod".to_owned();
        let wanted = Filter { priority: 7, handle: 1, name, program: Some(41) };
        assert_eq!(filter(&body(1)), Some(wanted));
        assert_eq!(filter(&body(0)), None, "a priority as a whole");
    }

    #[test]
    fn what_is_cut_off_is_no_other_filter() {
        let body = body(1);
        for length in 0..body.len() {
            let cut = filter(&body[..length]);
            let is_right = cut.is_none_or(|cut| cut.priority == 7 && cut.name.starts_with("bpf"));
            assert!(is_right, "{length} bytes");
        }
    }

    #[test]
    fn the_kernel_lists_no_filters_of_the_loopback_device() {
        let netlink = Netlink::open(None).expect("a socket");
        assert_eq!(of(&netlink, 1, Direction::Egress).expect("an answer"), []);
    }
}
