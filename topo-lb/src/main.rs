//! The `topo-lb` command: reads the command line, calls the library, prints.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use topo_lb::aside::say;
use topo_lb::cli::{
    AgentArgs, CheckArgs, CleanupArgs, Command, DirectReturn, ExplainArgs, LintArgs, ListArgs,
    MigrateArgs, Output, PodTask, ProbeArgs, TopArgs, TraceArgs, TryArgs, ViewArgs, kube_target,
    name, node_name,
};
use topo_lb::commands::list::Listed;
use topo_lb::commands::{check, list, migrate, top, trace, try_out, view};

use topo_lb::{name_service, pod};
use topo_lb_agent::admin::probe;
use topo_lb_agent::app;
use topo_lb_agent::serve::Listen;
use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::explain::{self, Asked, ServicePort, Spread};
use topo_lb_core::lint;
use topo_lb_core::lint::Rule;
use topo_lb_core::peers::status::Status;
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::exposed::Exposing;
use topo_lb_kernel::datapath::attach::cleanup::cleanup;
use topo_lb_kube::source::{self, Listing};
use topo_lb_kube::{crd, heap};

mod evacuating;
mod planning;
mod printing;
mod reading;

use evacuating::{run_evacuate, run_restore};
use planning::run_plan;
use printing::{colours, print, put, start_logging, write};
use reading::{cluster, known_scope, read_cluster, say_skipped, service_ids};

fn main() -> ExitCode {
    name_service::keep_to_own();
    let result = match name::parse().command {
        Command::Try(args) => run_try(&args),
        Command::Agent(args) => run_agent(*args),
        Command::Explain(args) => run_explain(&args),
        Command::Lint(args) => run_lint(&args),
        Command::Plan(args) => run_plan(&args),
        Command::Evacuate(args) => run_evacuate(&args),
        Command::Restore(args) => run_restore(&args),
        Command::Migrate(args) => run_migrate(&args),
        Command::List(args) => run_list(&args),
        Command::Top(args) => run_top(&args),
        Command::Trace(args) => run_trace(args),
        Command::View(args) => run_view(args),
        Command::Check(args) => run_check(&args),
        Command::Crds => run_crds(),
        Command::Cleanup(args) => run_cleanup(&args),
        Command::Probe(args) => run_probe(&args),
        Command::Pod(task) => run_pod(task),
        Command::SelfProbe { address } => {
            check::probe_child(address).map(|()| ExitCode::SUCCESS).map_err(Into::into)
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            say(format_args!("{error:#}"));
            let interrupted = error.downcast_ref::<try_out::Interrupted>();
            interrupted.map_or(ExitCode::FAILURE, |it| ExitCode::from(it.0))
        }
    }
}

fn run_crds() -> anyhow::Result<ExitCode> {
    put(&crd::manifest()?)?;
    Ok(ExitCode::SUCCESS)
}

fn run_try(args: &TryArgs) -> anyhow::Result<ExitCode> {
    let report = try_out::run(colours(), |text| match args.output {
        Output::Table => write(&format!("{text}\n")),
        Output::Json => Ok(()),
    })?;
    print(args.output, &report, || try_out::summary(&report))?;
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_migrate(args: &MigrateArgs) -> anyhow::Result<ExitCode> {
    let mut is_first = true;
    for path in &args.files {
        let text = if path == Path::new("-") {
            std::io::read_to_string(std::io::stdin())
        } else {
            std::fs::read_to_string(path)
        };
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        let documents = migrate::stream(&text, args.zones_are_pools);
        for document in documents.with_context(|| path.display().to_string())? {
            document.sentences.iter().for_each(say);
            if args.all || document.is_changed {
                let is_apart = is_first || document.text.trim_start().starts_with("---");
                put(&format!("{}{}", if is_apart { "" } else { "---\n" }, document.text))?;
                is_first = false;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_agent(args: AgentArgs) -> anyhow::Result<ExitCode> {
    args.check().unwrap_or_else(|error| error.exit());
    heap::share();
    start_logging(args.log_format);
    let config = args.config()?;
    // One task on this thread owns all state; a second thread reads from the API server.
    let runtime = runtime(Builder::new_multi_thread().worker_threads(1))?;
    let result = runtime.block_on(app::run(config));
    // A disk that does not answer must not keep the agent from exiting.
    runtime.shutdown_background();
    result?;
    Ok(ExitCode::SUCCESS)
}

fn run_explain(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let is_alone = args.node.is_none() && args.source.manifests.is_none();
    if let Some(url) = args.agent.as_deref().filter(|_| is_alone) {
        return explain_by_agent(url, args);
    }
    let Listing { updates, faults, .. } = read_cluster(&args.source, false)?;
    for fault in faults {
        say(fault.sentence);
    }
    let asked = Asked::new(&args.services);
    let target = args.source.manifests.is_none().then(|| args.source.target());
    let known = known_scope(&args.scope, target);
    let scope = known.unwrap_or_default();
    let node = node_name(args.node.clone(), "--node");
    // Who calls kubectl is on no node.
    if args.all_nodes || node.is_err() && name::is_plugin() {
        let state = cluster(updates, "");
        let ids = service_ids(&asked.services(), &state)?;
        name_scope(known, &state, "", &ids);
        if !asked.services().is_empty() {
            say_skipped(&state, &ids);
        }
        let mut spreads: Vec<_> =
            ids.iter().flat_map(|id| explain::spread(&state, scope, id)).collect();
        asked.keep(&mut spreads, Spread::place).map_err(anyhow::Error::msg)?;
        print(args.output, &spreads, || explain::spread_table(&spreads, colours()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let node = node.map_err(|error| anyhow::anyhow!("{error}; --all-nodes explains all nodes"))?;
    let state = cluster(updates, &node);
    let ids = service_ids(&asked.services(), &state)?;
    name_scope(known, &state, &node, &ids);
    let mut report = match &args.agent {
        None => explain::report(&state, &node, scope, &ids),
        Some(url) => {
            let said = block_on(top::get(url, "/peers"))?;
            let said = said.with_context(|| format!("the agent at {url} cannot be asked"))?;
            let peers: Option<Vec<Status>> = serde_json::from_str(&said)
                .with_context(|| format!("{url}/peers: the agent has another version"))?;
            let direct_return = peers.is_some();
            let exposing = Exposing { outside: true, direct_return, ..Exposing::default() };
            let (lack, peers) = (BTreeMap::new(), peers.unwrap_or_default());
            explain::report_of_agent(&state, &node, scope, &ids, &lack, &exposing, &peers)
        }
    };
    asked.keep(&mut report.services, ServicePort::place).map_err(anyhow::Error::msg)?;
    print(args.output, &report, || explain::table(&report, colours()))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints what an agent decides by what it knows itself, also where nobody reaches the API server.
fn explain_by_agent(url: &str, args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let ask = |path: &str| {
        let said = block_on(top::get(url, path))?;
        said.with_context(|| format!("the agent at {url} does not explain it"))
    };
    for one in &args.services {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-.".contains(&byte);
        let is_name = |part: &str| !part.is_empty() && part.bytes().all(is_known);
        anyhow::ensure!(
            one.split_once('/')
                .is_some_and(|(namespace, name)| is_name(namespace) && is_name(name)),
            "{one:?} is not a whole Service: an agent alone explains NAMESPACE/NAME, with all its ports"
        );
    }
    let said = match (args.output, args.services.as_slice()) {
        (Output::Json, []) => ask("/explain")?,
        (Output::Json, [one]) => ask(&format!("/explain?service={one}"))?,
        (Output::Json, _) => {
            anyhow::bail!("-o json with --agent alone takes one Service, or none for all")
        }
        (Output::Table, []) => anyhow::bail!(
            "name the Services as NAMESPACE/NAME: --agent alone explains those; with -o json all"
        ),
        (Output::Table, several) => {
            let tables =
                several.iter().map(|one| ask(&format!("/explain?service={one}&output=table")));
            tables.collect::<anyhow::Result<Vec<_>>>()?.join("\n")
        }
    };
    write(&said)?;
    Ok(ExitCode::SUCCESS)
}

/// Says what agents with another scope decide, if none is known.
fn name_scope(known: Option<Scope>, state: &State, node: &str, ids: &[ServiceId]) {
    if known.is_some() {
        return;
    }
    let [all, opt_in] =
        [Scope::All, Scope::OptIn].map(|scope| explain::report(state, node, scope, ids).services);
    let other =
        all.iter().zip(&opt_in).filter(|(one, two)| one.decision.verdict != two.decision.verdict);
    let count = other.count();
    if count > 0 {
        say(format_args!(
            "shown as agents with --scope all decide; those with --scope opt-in leave {count} of these Service \
             ports to kube-proxy"
        ));
    }
}

fn run_lint(args: &LintArgs) -> anyhow::Result<ExitCode> {
    let Listing { updates, faults, clients, unread } = read_cluster(&args.source, true)?;
    let mut findings = lint::unreadable(faults.iter().map(source::Fault::parts));
    if clients.is_none() && args.source.manifests.is_some() && !args.ignore.contains(&Rule::Meshed)
    {
        say("meshes are not looked for: the manifests have neither Namespaces nor Pods");
    }
    let clients = clients.unwrap_or_default();
    findings.extend(lint::meshed(&clients.meshed, &args.exclude_namespaces));
    findings.extend(lint::unclear(&clients.unclear));
    let state = cluster(updates, "");
    findings.extend(lint::unread(&unread, &state));
    let target = args.source.manifests.is_none().then(|| args.source.target());
    let scope = known_scope(&args.scope, target).unwrap_or_default();
    findings.extend(lint::findings(&state, scope));
    findings.sort();
    findings.retain(|one| !args.ignore.contains(&one.rule));
    let all = findings.len();
    findings.retain(|one| one.severity <= args.level);
    let hidden = all - findings.len();
    print(args.output, &findings, || {
        if hidden == 0 {
            return lint::table(&findings, colours());
        }
        let level = lint::name(&args.level);
        let below = format!("{hidden} below the level {level}: --level info shows them");
        match findings.is_empty() {
            true => format!("Nothing found, but {below}\n"),
            false => format!("{}{below}\n", lint::table(&findings, colours())),
        }
    })?;
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let listed = match args.what {
        list::View::Peers => {
            let said = match args.listen {
                Listen::On(address) => block_on(top::get(&format!("http://{address}"), "/peers"))?,
                Listen::Off => Err(anyhow::anyhow!("it does not listen")),
            };
            list::list_peers(&args.pin.pin_dir, said)?
        }
        what => list::list(&args.pin.pin_dir, what)?,
    };
    args.pin.caveat().into_iter().for_each(say);
    if let Listed::Peers { trouble: Some(trouble), .. } = &listed {
        say(trouble);
    }
    if let Listed::Connections { hidden: hidden @ 1.., .. } = listed {
        say(format_args!(
            "the UDP flows of {hidden} processes are not shown: that takes CAP_SYS_PTRACE"
        ));
    }
    print(args.output, &listed, || listed.table())?;
    Ok(ExitCode::SUCCESS)
}

fn run_top(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let options = args.options(kube_target(args.kubeconfig.as_deref(), &[]));
    let is_once = args.once || args.output == Output::Json || !std::io::stdout().is_terminal();
    if !is_once {
        top::watch(&options, colours())?;
        return Ok(ExitCode::SUCCESS);
    }
    let (looked, sentences) = block_on(top::once(&options))??;
    sentences.iter().for_each(say);
    let is_terminal = std::io::stdout().is_terminal();
    print(args.output, &looked, || top::table(&looked, args.sort, is_terminal))?;
    Ok(ExitCode::SUCCESS)
}

fn run_trace(args: TraceArgs) -> anyhow::Result<ExitCode> {
    if let Some(place) = args.place() {
        let status = block_on(trace::trace_there(&place, &args.arguments()))??;
        return Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let (out, mut errors) = (std::io::stdout(), std::io::stderr());
    block_on(trace::run(args.options(colours()), out, &mut errors))??;
    Ok(ExitCode::SUCCESS)
}

fn run_view(args: ViewArgs) -> anyhow::Result<ExitCode> {
    let runtime = runtime(Builder::new_multi_thread().worker_threads(2))?;
    let served = runtime.block_on(async {
        let ready = |address| {
            // A page that nobody is told of is still served.
            let _ = write(&format!("The page is at http://{address}. Ctrl-C ends it."));
        };
        let mut ended = signal(SignalKind::terminate()).context("cannot wait for signals")?;
        tokio::select! {
            served = view::serve(args.options(), ready, |sentence: &str| say(sentence)) => served,
            end = tokio::signal::ctrl_c() => end.context("cannot wait for Ctrl-C"),
            // As the first process of a container it is asked so, and would not end by itself.
            Some(()) = ended.recv() => Ok(()),
        }
    });
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS)
}

fn run_check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let options = check::Options {
        cgroup_root: args.cgroup_root.clone(),
        pin_dir: args.pin.pin_dir.clone(),
        tolerated: args.tolerate_programs.clone(),
        replacement: args.kube_proxy_replacement.then(|| check::Replacement {
            health: args.healthz.healthz_bind_address,
            devices: args.external_devices.clone(),
            direct_return: args.direct_return == DirectReturn::Auto,
        }),
    };
    let report = check::run(&options);
    print(args.output, &report, || check::table(&report, colours()))?;
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_cleanup(args: &CleanupArgs) -> anyhow::Result<ExitCode> {
    let removed = cleanup(&args.pin.pin_dir)?;
    let text = if removed.is_empty() {
        format!("Nothing to remove at {}.", args.pin.pin_dir.display())
    } else {
        format!(
            "Detached {} programs and removed {} maps at {}{}.",
            removed.detached.len(),
            removed.unpinned.len(),
            args.pin.pin_dir.display(),
            if removed.table { ", and the nftables table inet topo-lb" } else { "" }
        )
    };
    write(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn run_probe(args: &ProbeArgs) -> anyhow::Result<ExitCode> {
    let answer = block_on(probe::ask(&args.probe_socket, args.what))??;
    write(&answer.sentence)?;
    Ok(if answer.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_pod(task: PodTask) -> anyhow::Result<ExitCode> {
    match task {
        PodTask::MountBpffs { place } => pod::mount_bpffs(&place)?,
        PodTask::Done => block_on(pod::done())??,
        PodTask::Test(args) => {
            let args = *args;
            let (service, port) = (args.service(), args.endpoint_port);
            let answered = block_on(pod::test(args.trace.options(false), service, port))??;
            write(&format!("{answered} connections to the Service at {service} were answered"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a command's only task on this thread.
fn block_on<T>(task: impl Future<Output = T>) -> anyhow::Result<T> {
    Ok(runtime(&mut Builder::new_current_thread())?.block_on(task))
}

fn runtime(builder: &mut Builder) -> anyhow::Result<Runtime> {
    builder.enable_all().build().context("cannot start the asynchronous runtime")
}
