//! A clock that is set, as chrony and ntpd do at their start: by a day ahead, by two days back, and to what it was.
//!
//! Only in guests: in the lab, this would be the clock of a machine that others use.

use anyhow::{Context as _, Result, ensure};
use rustix::time::{ClockId, Timespec, clock_gettime, clock_settime};
use topo_lb_tests::scene::{ALL, FOLLOWS, WEB4, at, play_with_machines};
use topo_lb_tests::traffic::Via;

/// Sets the machine's clock by so many seconds.
fn set(by: i64) -> Result<()> {
    let now = clock_gettime(ClockId::Realtime);
    Ok(clock_settime(ClockId::Realtime, Timespec { tv_sec: now.tv_sec + by, ..now })?)
}

const DAY: i64 = 86_400;

#[test]
#[ignore = "it sets the machine's clock; the virtual machines of `cargo xtask test` run it"]
fn connections_and_changes_go_on_whatever_the_clock_says() -> Result<()> {
    play_with_machines(|scene| {
        let to = at(WEB4)?;
        let mut machine = scene.cluster.machine("client")?;
        let (socket, flow) = (scene.client.open(Via::Http, to)??, machine.open(Via::Http, to)??);
        let pods = [scene.client.ask(socket, None)??.pod, machine.ask(flow, None)??.pod];
        let idle = ALL.into_iter().find(|pod| pods.iter().all(|it| it != pod));
        let idle = idle.context("two connections, and four pods")?;
        let rest: Vec<_> = ALL.into_iter().filter(|it| *it != idle).collect();
        for by in [DAY, -2 * DAY, DAY] {
            set(by)?;
            let now = [scene.client.ask(socket, None)??.pod, machine.ask(flow, None)??.pod];
            ensure!(now == pods, "{by} s: {now:?}, and {pods:?} before");
            for (is_ready, pods) in [(false, &rest[..]), (true, &ALL)] {
                scene.set_ready(idle, is_ready)?;
                for via in [Via::Http, Via::Udp] {
                    scene.wait_for(via, to, pods)?;
                    machine.wait_for(via, to, pods, FOLLOWS)?;
                }
            }
        }
        Ok(())
    })
}
