//! etcd is killed, or has forgotten what a watch asks for; watches break in the middle of an event.

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::hub::{Break, Hub};
use topo_lb_tests::kind::POOL;
use topo_lb_tests::scene::KEYS;
use topo_lb_tests::wait::{until, until_is};

use super::town::{A, B, CONTROLLERS, SOFT, SOON, Slice, THERE, Town, WEB, service};

pub(super) fn database_is_killed(town: &mut Town<'_>) -> Result<()> {
    let (a, all) = (&A[..2], [&A[..2], &B[..2]].concat());
    town.run("web", &all)?;
    town.plane.create([service("web", WEB, "web", Some(POOL))])?;
    town.answered_by(WEB, a)?;
    town.answered_during(WEB, |town| {
        town.plane.kill_etcd();
        let is_ready = || Ok(town.plane.is_ready());
        until_is("a server without its database", SOON, is_ready, |is_ready| !is_ready)?;
        town.plane.start_etcd()?;
        town.plane.wait_until_ready()?;
        town.plane.relabel(THERE, POOL, Some("west"))?;
        town.answered_by(WEB, &all).map(drop)
    })
}

pub(super) fn database_forgets(town: &mut Town<'_>, hub: &Hub) -> Result<()> {
    const OTHERS: u8 = 50;
    // Without its cache kube-apiserver reads watches from etcd.
    town.plane.set("--watch-cache=false");
    town.plane.kill_api_server();
    town.plane.start_api_server()?;
    // The running controllers would wait long before they retry.
    town.plane.start_controllers_with(&CONTROLLERS[1..])?;
    let (old, new) = (&A[..2], &B[..2]);
    town.run("old", old)?;
    town.run("new", new)?;
    town.plane.create([service("web", WEB, "old", None), service("steady", SOFT, "old", None)])?;
    let name = |number| (format!("other-{number}"), format!("10.96.4.{number}"));
    town.plane.create((0..OTHERS).map(name).map(|it| service(&it.0, &it.1, "old", None)))?;
    town.agent.resume()?;
    town.answered_by(WEB, old)?;
    for number in 0..OTHERS {
        town.answered_by(&name(number).1, old)?;
    }
    let writes = |town: &Town<'_>| town.metric("topo_lb_map_writes_total", "");
    let (listings, written) = (town.listings()?, writes(town)?);

    town.answered_during(SOFT, |town| {
        hub.shut();
        // The agent receives no event of these changes.
        town.plane.delete("Service", &["web"])?;
        town.plane.create([service("web", WEB, "new", None)])?;
        town.plane.delete("Service", &["other-7"])?;
        town.plane.relabel(THERE, POOL, Some("west"))?;
        let uid = town.uid("web")?;
        let own = |it: &Slice| it.owner.as_ref() == Some(&uid) && it.pods.len() == 2;
        town.until_slices("web", |slices| !slices.is_empty() && slices.iter().all(own))?;
        town.until_slices("other-7", <[Slice]>::is_empty)?;
        town.plane.compact()?;
        hub.open();
        town.answered_by(WEB, new).map(drop)
    })?;
    town.agent.wait_for_services(SOON, |it| !it.to_string().contains("other-7"))?;
    until("listings of every kind", SOON, || {
        let now = town.listings()?;
        let anew = now.iter().zip(&listings).all(|(now, before)| now > before);
        Ok(if anew { Ok(()) } else { Err(format!("{listings:?}, then {now:?}")) })
    })?;
    let written = writes(town)? - written;
    eprintln!("{written} writes for two Services that have changed, of {}", OTHERS + 3);
    ensure!((1..u64::from(OTHERS) / 2).contains(&written), "{written} writes");
    Ok(())
}

pub(super) fn watches_break(town: &mut Town<'_>, hub: &Hub) -> Result<()> {
    let (a, b) = (&A[..2], &B[..2]);
    let all = [a, b].concat();
    town.run("web", &all)?;
    // A Service that reads Node labels makes the agent watch all Nodes from the start.
    town.plane.create([service("web", WEB, "web", Some(POOL))])?;
    town.agent.resume()?;
    town.answered_by(WEB, a)?;
    town.plane.annotate("web", KEYS, None)?;
    town.answered_by(WEB, &all)?;
    let listings = town.listings()?;
    town.answered_during(WEB, |town| {
        hub.break_next("services", Break::Cut);
        town.plane.annotate("web", KEYS, Some(POOL))?;
        town.answered_by(WEB, a)?;
        ensure!(hub.broken() == 1, "nothing was broken");

        hub.break_next("endpointslices", Break::Cut);
        town.run("web", &A[2..3])?;
        town.answered_by(WEB, &A[..3])?;
        ensure!(hub.broken() == 2, "nothing was broken");

        hub.break_next("nodes", Break::Cut);
        town.plane.relabel(THERE, POOL, Some("west"))?;
        town.answered_by(WEB, &[&A[..3], b].concat())?;
        ensure!(hub.broken() == 3, "nothing was broken");
        town.plane.relabel(THERE, POOL, Some("east"))?;
        town.answered_by(WEB, &A[..3])?;

        // Half an event changes nothing; events of other watches take effect meanwhile.
        hub.break_next("services", Break::Stall);
        town.plane.annotate("web", KEYS, None)?;
        until_is("half of an event", SOON, || Ok(hub.broken()), |broken| *broken == 4)?;
        town.run("web", &A[3..4])?;
        town.answered_by(WEB, &A[..4]).context("by half of an event")?;
        hub.go_on();
        town.answered_by(WEB, &[&A[..4], b].concat()).map(drop)
    })?;
    let now = town.listings()?;
    ensure!(now == listings, "everything was listed anew: {listings:?}, then {now:?}");
    Ok(())
}
