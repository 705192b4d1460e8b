//! A part of the table of external traffic: topo-lb in place of kube-proxy does what the kept table has
//! of kube-proxy 1.20, but for the accepted differences. `cargo xtask external-matrix` makes the whole.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Result, ensure};
use topo_lb_tests::external::cell::{Caller, Cell, Endpoints, Service, Target};
use topo_lb_tests::external::scene::{ReversePath, within};
use topo_lb_tests::external::{Proxy, compare, docs, files, kept};

/// Every so many cells one is dialled: a prime, so that each property has all its values.
const STRIDE: usize = 61;

/// Cells over the whole table, each with the one without affinity that levels it.
fn part() -> Vec<Cell> {
    let some: BTreeSet<_> =
        Cell::all().step_by(STRIDE).flat_map(|cell| [cell, cell.plain()]).collect();
    some.into_iter().collect()
}

/// A client outside whose endpoint is on another node than the one that it dials.
fn sent_on() -> impl Iterator<Item = Cell> {
    let service = Service { endpoints: Endpoints::There, ..Service::plain() };
    Cell::all().filter(move |it| {
        let is_external = matches!(it.target, Target::LoadBalancer | Target::ExternalIp);
        it.service == service && it.caller == Caller::Outside && is_external
    })
}

#[test]
fn topo_lb_does_what_kube_proxy_does_in_a_part_of_all_cells() -> Result<()> {
    let kube_proxy = kept(&docs())?;
    within(ReversePath::Loose, |stage| {
        let topo_lb = stage.with_topo_lb(|stage| stage.measure(&part()))?;
        ensure!(stage.directly > 100, "{} direct exchanges with endpoints", stage.directly);
        compare(&kube_proxy, Proxy::TopoLb, &topo_lb)?;
        // Direct return makes a difference in few cells.
        let part: Vec<_> = part().into_iter().chain(sent_on()).collect();
        let directly = stage.with_direct_return(|stage| stage.measure(&part))?;
        compare(&kube_proxy, Proxy::DirectReturn, &directly)
    })
}

#[test]
fn the_page_is_made_of_the_kept_table() -> Result<()> {
    for (name, text) in files(&kept(&docs())?) {
        let is = fs::read_to_string(docs().join(name))?;
        ensure!(
            is == text,
            "docs/{name} is not what `cargo xtask external-matrix --write-docs` makes"
        );
    }
    Ok(())
}

#[test]
fn a_part_has_every_value_of_every_property() -> Result<()> {
    let names = |cells: &[Cell]| -> Vec<BTreeSet<&str>> {
        (0..6).map(|place| cells.iter().map(|it| it.names()[place]).collect()).collect()
    };
    let (part, all): (Vec<_>, Vec<_>) = (part(), Cell::all().collect());
    ensure!(names(&part) == names(&all), "{:?}", names(&part));
    ensure!(part.len() > 100, "{} cells", part.len());
    Ok(())
}
