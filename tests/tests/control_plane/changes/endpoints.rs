//! Endpoints move between EndpointSlices, and a ClusterIP between Services.

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::scene::at;

use super::town::{A, B, IN_SLICE, Slice, Town, WEB, service};

pub(super) fn slices_split_and_merge(town: &mut Town<'_>) -> Result<()> {
    let all = [A, B].concat();
    let (first, rest) = all.split_at(3);
    town.plane.create([service("web", WEB, "web", None)])?;
    town.run("web", first)?;
    town.answered_by(WEB, first)?;
    ensure!(town.slices("web")?.len() == 1, "three endpoints fit into a slice");

    town.answered_during(WEB, |town| {
        town.run("web", rest)?;
        town.answered_by(WEB, &all).map(drop)
    })
    .context("while slices were split")?;
    let slices = town.slices("web")?;
    ensure!(slices.len() >= 3, "{} slices of {} pods", slices.len(), all.len());
    ensure!(slices.iter().all(|slice| slice.pods.len() <= IN_SLICE), "a slice is too long");

    // One pod of each slice remains.
    let last: Vec<_> = slices.iter().filter_map(|slice| slice.pods.first()).collect();
    let last: Vec<&str> = last.into_iter().map(String::as_str).collect();
    town.answered_during(WEB, |town| {
        let others: Vec<_> = all.iter().copied().filter(|pod| !last.contains(pod)).collect();
        town.plane.delete("Pod", &others)?;
        town.answered_by(WEB, &last)?;
        // The controller keeps the slices until one is deleted: then another gets its endpoint.
        for (place, slice) in slices[1..].iter().enumerate() {
            town.plane.delete("EndpointSlice", &[&slice.name])?;
            let left = slices.len() - 1 - place;
            town.until_slices("web", |now| {
                now.len() == left && now.iter().map(|it| it.pods.len()).sum::<usize>() == last.len()
            })?;
        }
        town.answered_by(WEB, &last).map(drop)
    })
    .context("while slices were merged")
}

pub(super) fn a_cluster_ip_moves(town: &mut Town<'_>) -> Result<()> {
    // In place of kube-proxy.
    let _untouched = town.cluster.serve_untouched(&[at(WEB)?])?;
    let (old, new) = (&A[..2], &B[..3]);
    town.run("old", old)?;
    town.run("new", new)?;
    town.plane.create([service("web", WEB, "old", None)])?;
    town.answered_by(WEB, old)?;
    let first = town.uid("web")?;

    let tally = town.call_during(WEB, |town| {
        // A new Service with the same name.
        town.plane.delete("Service", &["web"])?;
        town.plane.create([service("web", WEB, "new", None)])?;
        town.answered_by(WEB, new)?;
        let second = town.uid("web")?;
        ensure!(first != second, "it is the same Service");
        // The new Service may use its predecessor's slices until they are garbage-collected.
        let own = |slice: &Slice| slice.owner.as_ref() == Some(&second);
        town.until_slices("web", |slices| !slices.is_empty() && slices.iter().all(own))?;
        town.answered_by(WEB, new)?;
        // A new Service with another name.
        town.plane.delete("Service", &["web"])?;
        town.plane.create([service("shop", WEB, "old", None)])?;
        town.answered_by(WEB, old)?;
        town.until_slices("web", <[Slice]>::is_empty)?;
        town.answered_by(WEB, old).map(drop)
    })?;
    // Between two Services the address belongs to none, and a Service without endpoints refuses.
    ensure!(tally.answered() + tally.refused == tally.requests, "{tally}");
    Ok(())
}
