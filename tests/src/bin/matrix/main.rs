//! Makes the tables of external traffic with kube-proxy 1.20 and with topo-lb, also with direct return, and compares them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Parser;
use fs_err as fs;
use topo_lb_tests::external::cell::Cell;
use topo_lb_tests::external::scene::{ReversePath, within};
use topo_lb_tests::external::table::Table;
use topo_lb_tests::external::{Proxy, compare, docs, files, kept};
use topo_lb_tests::interrupt::exit_code;

/// Needs root, the agent binary in TOPO_LB_AGENT, and kube-proxy 1.20 in TOPO_LB_KUBE_PROXY. Leaves
/// nothing behind, even after Ctrl-C. Exit code 1: a difference is on no list.
#[derive(Debug, Parser)]
#[command(name = "matrix")]
struct Arguments {
    /// Only the table with this proxy; topo-lb's is compared with the kept one of kube-proxy
    #[arg(long, value_enum)]
    proxy: Option<Proxy>,
    /// Keep kube-proxy's table in this folder of docs, and the page made of it
    #[arg(long, value_name = "FOLDER")]
    write_docs: Option<PathBuf>,
}

fn main() -> ExitCode {
    exit_code(run(&Arguments::parse()).map(|()| true))
}

fn run(arguments: &Arguments) -> Result<()> {
    let measured = |proxy| arguments.proxy.is_none_or(|only| only == proxy);
    let kube_proxy =
        if measured(Proxy::KubeProxy) { measure(Proxy::KubeProxy)? } else { kept(&docs())? };
    for proxy in [Proxy::TopoLb, Proxy::DirectReturn] {
        if measured(proxy) {
            compare(&kube_proxy, proxy, &measure(proxy)?)?;
        }
    }
    if let Some(folder) = &arguments.write_docs {
        fs::create_dir_all(folder.join("external"))?;
        for (name, text) in files(&kube_proxy) {
            fs::write(folder.join(name), text)?;
        }
    }
    Ok(())
}

fn measure(proxy: Proxy) -> Result<Table> {
    let cells: Vec<_> = Cell::all().collect();
    let begun = Instant::now();
    let (table, directly) = within(ReversePath::Strict, |stage| {
        let table = match proxy {
            Proxy::KubeProxy => stage.with_kube_proxy(|stage| stage.measure(&cells)),
            Proxy::TopoLb => stage.with_topo_lb(|stage| stage.measure(&cells)),
            Proxy::DirectReturn => stage.with_direct_return(|stage| stage.measure(&cells)),
        };
        Ok((table?, stage.directly))
    })?;
    let name: &str = proxy.into();
    let (cells, seconds) = (table.0.len(), begun.elapsed().as_secs_f64());
    // The table does not show these dials.
    ensure!(
        proxy == Proxy::KubeProxy || directly >= 10_000,
        "{name}: endpoints were dialled directly only {directly} times"
    );
    eprintln!("{name}: {cells} cells, and endpoints directly {directly} times, in {seconds:.1} s");
    Ok(table)
}
