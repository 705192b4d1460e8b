//! UDP flows: how long they keep their endpoint.

use std::time::Duration;

use anyhow::Result;
use topo_lb_common::address::UDP;
use topo_lb_tests::packets::{Hook, NEXT};

use super::scene::{A4, B4, CLIENT4, WEB4, at, expect, expect_untouched, scene, udp};

#[test]
fn datagrams_leave_an_endpoint_that_is_gone_and_no_other() -> Result<()> {
    let mut programs = scene()?;
    expect(&mut programs, "first", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    programs.serve(2, at(WEB4), UDP, &[at(B4)])?;
    expect(&mut programs, "serves", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    programs.remove_member(2, at(A4))?;
    expect(&mut programs, "gone", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, B4))?;
    Ok(())
}

#[test]
fn datagrams_of_one_way_keep_the_other_way_too() -> Result<()> {
    let mut programs = scene()?;
    let (asked, answered) = (udp(CLIENT4, WEB4), udp(A4, CLIENT4));
    for _ in 0..5 {
        expect(&mut programs, "asks", Hook::Ingress, &asked, (NEXT, CLIENT4, A4))?;
        programs.age(Duration::from_secs(20))?;
    }
    expect(&mut programs, "answers late", Hook::Egress, &answered, (NEXT, WEB4, CLIENT4))?;
    programs.serve(2, at(WEB4), UDP, &[at(A4), at(B4)])?;
    for _ in 0..5 {
        programs.age(Duration::from_secs(100))?;
        expect(&mut programs, "goes on", Hook::Egress, &answered, (NEXT, WEB4, CLIENT4))?;
    }
    expect(&mut programs, "the same one", Hook::Ingress, &asked, (NEXT, CLIENT4, A4))?;
    // A flow ends when both sides are silent.
    programs.age(Duration::from_secs(130))?;
    expect_untouched(&mut programs, "too late", Hook::Egress, &answered)
}
