//! Direct return by XDP: the CPU time of a node for frames of known flows that it sends on as they come, and that of a
//! program that only swaps addresses. As in [`crate::xdp`], whose frames and turns these are.

use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::{Result, ensure};
use topo_lb_tests::card::answer_all;

use crate::direct_return::{agents, balancer, counted};
use crate::ground::{Effort, FAR, FAR_NUMBER, Ground, HERE, HERE_NUMBER, PLAIN, PLAIN_NUMBER};
use crate::result::Figure;
use crate::uplink::{Cpus, DEVICE, Uplink};
use crate::xdp::{Contender, Flows, SWAP, Task, rounds, turns};

const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 80);
/// How many packets of a device the kernel takes at once (include/linux/netdevice.h).
const NAPI_POLL_WEIGHT: u16 = 64;
const DIRECT: &str = "topo-lb --xdp any --direct-return auto";

pub(crate) fn measure(ground: &Ground<'_>, effort: Effort) -> Result<Vec<Figure>> {
    // From here on, no probe of theirs gets to the other node: a proof lasts for three more.
    let agents = agents(ground, "any")?;
    let cpus = Cpus::divide()?;
    let uplink = |name, number| Uplink::new(ground.cluster, name, number, &cpus);
    let [here, bare, again] =
        [uplink(HERE, HERE_NUMBER)?, uplink(FAR, FAR_NUMBER)?, uplink(PLAIN, PLAIN_NUMBER)?];
    let _swaps = [answer_all(bare.node, DEVICE)?, answer_all(again.node, DEVICE)?];
    let mut figures = Vec::new();
    for count in [1_000, 1] {
        let flows = |is_answered| Flows { from: CLIENT, count, is_answered };
        let to = balancer(0);
        let mut contenders = [
            Contender::new(SWAP, &bare, flows(true), to)?,
            Contender::new(DIRECT, &here, flows(false), to)?,
            Contender::new(SWAP, &again, flows(true), to)?,
        ];
        let sent_on = || -> Result<[u64; 2]> {
            let [by_xdp, by_tc] = ["xdp", "tc ingress"].map(|hook| counted(&agents[0], hook));
            Ok([by_xdp?.sent_on, by_tc?.sent_on])
        };
        let (before, began) = (sent_on()?, Instant::now());
        rounds(&mut contenders, Task::SendOn, effort)?;
        let (after, took) = (sent_on()?, began.elapsed());
        let [by_xdp, by_tc] = [after[0] - before[0], after[1] - before[1]];
        let (turns, frames) = turns(effort);
        // A flow's first packet is tc's, and one every 8.6 s, with those of the same poll of the device.
        let of_tc = u64::from(count.max(NAPI_POLL_WEIGHT)) * (2 + took.as_secs() / 8);
        ensure!(
            by_xdp >= u64::from(turns) * frames && by_tc <= of_tc,
            "{count} flows: XDP has sent on {by_xdp}, and tc {by_tc}"
        );
        let [swap, direct, again] = &contenders;
        let ratio = |it: &Contender<'_>| {
            let ratio = Figure::new("xdp_direct_ratio", "ratio", &swap.times.by(&it.times));
            ratio.with("flows", count).with("by", it.by)
        };
        figures.extend([ratio(direct).at_least(0.6), ratio(again)]);
        for it in [direct, swap] {
            let rate = Figure::new("xdp_direct_kpps", "kpps", &it.times.inverted(1e6));
            figures.push(rate.with("by", it.by).with("flows", count));
        }
    }
    Ok(figures)
}
