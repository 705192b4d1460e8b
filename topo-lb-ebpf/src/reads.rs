//! The programs of the stress test: they look frontends up and choose endpoints as the hooks do, and
//! check that what they read is of one generation of one Service. The agent does not have them.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch, stmt_expr_attributes)]
#![expect(dead_code, reason = "the hooks use more of these modules")]

mod base;
mod decide;

use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::macros::{btf_map, classifier};
use aya_ebpf::programs::TcContext;
use topo_lb_common::address::TCP;
use topo_lb_common::stress::{GENERATIONS, PORT, Reads, SERVICES, count, port};

use crate::base::family::{Family, RecordFields, V4, V6};
use crate::decide::records::{Found, find_noting};
use crate::decide::resolve::{choose, random};

#[btf_map(name = "reads")]
static READS: PerCpuArray<Reads, 1> = PerCpuArray::new();

/// Reads of one run: few enough that a grace period does not wait long.
const ROUNDS: u32 = 32;

/// Addresses of the stress test; the agent's side is `topo_lb_tests::address`.
trait Stressed: Family {
    fn cluster_ip(service: u32) -> Self::Address;
    fn endpoint_address(bits: u32) -> Self::Address;
    fn last_word(address: Self::Address) -> u32;
}

impl Stressed for V4 {
    #[inline(always)]
    fn cluster_ip(service: u32) -> u32 {
        (0xac14_0001 + service).to_be()
    }

    #[inline(always)]
    fn endpoint_address(bits: u32) -> u32 {
        (10 << 24 | bits).to_be()
    }

    #[inline(always)]
    fn last_word(address: u32) -> u32 {
        u32::from_be(address)
    }
}

impl Stressed for V6 {
    #[inline(always)]
    fn cluster_ip(service: u32) -> [u32; 4] {
        [0xfd00_000b_u32.to_be(), 0, 0, (1 + service).to_be()]
    }

    #[inline(always)]
    fn endpoint_address(bits: u32) -> [u32; 4] {
        [0xfd00_000a_u32.to_be(), 0, 0, bits.to_be()]
    }

    #[inline(always)]
    fn last_word([_, _, _, last]: [u32; 4]) -> u32 {
        u32::from_be(last)
    }
}

/// Reads IPv4 frontends.
#[classifier]
fn reads4(_: TcContext) -> i32 {
    run::<V4>()
}

/// Reads IPv6 frontends.
#[classifier]
fn reads6(_: TcContext) -> i32 {
    run::<V6>()
}

#[inline(always)]
fn run<F: Stressed>() -> i32 {
    let mut round = 0;
    while round < ROUNDS {
        read::<F>();
        round += 1;
    }
    0
}

/// Reads the next frontend, and counts.
#[inline(never)]
fn read<F: Stressed>() {
    let Some(reads) = READS.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: this CPU's element; one thread per CPU runs these programs.
    let reads = unsafe { &mut *reads };
    let service = reads.reads as u32 % SERVICES;
    reads.reads += 1;
    let frontend = F::frontend(F::cluster_ip(service), PORT, TCP);
    match find_noting::<F>(&frontend, 0, || reads.repeated += 1) {
        Found::Absent => reads.absent += 1,
        Found::Torn => reads.torn += 1,
        Found::Record(record) => {
            let fields = RecordFields::<F>::of(record);
            reads.wrong += u64::from(!is_whole::<F>(&fields, service));
        }
    }
}

/// Whether the record and the endpoint chosen from it are of one generation of `service`.
#[inline(always)]
fn is_whole<F: Stressed>(fields: &RecordFields<F>, service: u32) -> bool {
    let Some(endpoint) = choose(fields, |_| random()) else {
        return false;
    };
    // SAFETY: fields of a record.
    let (index, endpoints) = unsafe { (*fields.service, u32::from(*fields.count)) };
    let (address, endpoint_port) = F::endpoint_parts(&endpoint);
    let bits = F::last_word(address) & 0x00ff_ffff;
    let (generation, place) = (bits >> 9 & (GENERATIONS - 1), bits & 511);
    address == F::endpoint_address(bits)
        && bits >> 18 == service
        // The writer names the Services of a family in order.
        && index % SERVICES == service
        && endpoint_port == port(generation)
        && endpoints == count(generation)
        && place < endpoints
}
