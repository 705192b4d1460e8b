//! topo-lb on a real cluster: kubelets, containerd, real pods, with kube-proxy and without it.

mod answers;
mod bill;
mod changes;
mod come_home;
mod deployments;
mod island;
mod load;
mod names;
mod policies;
mod watching;
mod zones;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::deployment::deploy;
use topo_lb_tests::kubernetes::parts::Parts;
use topo_lb_tests::kubernetes::{Kubernetes, Proxy, names, plan};
use topo_lb_tests::lab::{Scenario, play_all, within};
use topo_lb_tests::process::printed;
use topo_lb_tests::progress::Progress;
use topo_lb_tests::requirements;
use topo_lb_tests::wait::{patient, until};

use answers::{
    ANYWHERE, POOLS, SERVICE, answers, asking, client_of, count, is_from_anywhere, only_from,
    pods_stay_in_their_pool, shell_on,
};
use bill::the_bill_is_what_pods_move;
use changes::{
    a_node_without_kubelet_keeps_its_connections, a_node_works_and_mends_itself_alone,
    a_pool_without_pods_is_refused, killed_pods_are_replaced_without_wrong_answers,
    processes_of_a_node_stay_in_its_pool,
};
use come_home::a_pooled_connection_comes_home;
use deployments::{
    an_upgrade_and_its_way_back_fail_no_connection, each_component_runs_on_a_kubelet,
    the_chart_does_the_same, the_cleanup_leaves_nothing_in_any_kernel,
};
use load::{Load, Stage};
use names::a_headless_name_has_the_own_pool_alone;
use policies::{
    a_namespace_has_a_default, a_pool_is_emptied_and_comes_back,
    a_ramp_holds_on_one_node_and_then_on_all, an_endpoint_that_refuses_is_left_out,
};
use watching::the_page_and_top_show_what_pods_do;
use zones::{a_pool_that_is_cut_off_stays_closed, close_by_zone, name_zones_after_pools};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn connections_of_real_pods_stay_in_their_pool_through_changes() -> Result<()> {
    requirements::command("curl", "curl")?;
    let names = names(2);
    within(&plan(&names), |cluster| {
        let parts = Parts::given()?;
        let kubernetes = Kubernetes::start(cluster, &parts, Proxy::Beside, Progress::new())?;
        apply_tutorial(&kubernetes)?;
        tutorial_is_there(&kubernetes)?;
        let load = Load::start(&kubernetes)?;
        let has_last_release = parts.last_release();
        let scenarios: &[Scenario<Stage<'_>>] = &[
            ("pods", |stage| pods_stay_in_their_pool(&stage.kubernetes)),
            ("node and host network", processes_of_a_node_stay_in_its_pool),
            ("nothing and back", a_pool_without_pods_is_refused),
            ("a default of a namespace", a_namespace_has_a_default),
            ("ramp", a_ramp_holds_on_one_node_and_then_on_all),
            ("evacuation", a_pool_is_emptied_and_comes_back),
            ("ejection", an_endpoint_that_refuses_is_left_out),
            ("pods killed", killed_pods_are_replaced_without_wrong_answers),
            ("rolling update to all components", each_component_runs_on_a_kubelet),
            ("pools that come home", a_pooled_connection_comes_home),
            ("headless name", a_headless_name_has_the_own_pool_alone),
            ("view and top", the_page_and_top_show_what_pods_do),
            ("bill", the_bill_is_what_pods_move),
            ("upgrade", an_upgrade_and_its_way_back_fail_no_connection),
            ("kubelet killed", a_node_without_kubelet_keeps_its_connections),
            ("agent hangs, and the API server is away", a_node_works_and_mends_itself_alone),
            ("cleanup", the_cleanup_leaves_nothing_in_any_kernel),
            ("chart", the_chart_does_the_same),
        ];
        play_all(&mut Stage { kubernetes, load, has_last_release }, Stage::begin, scenarios)
    })
}

#[test]
fn a_cluster_without_kube_proxy_serves_pods_nodes_and_clients_outside() -> Result<()> {
    requirements::command("curl", "curl")?;
    let names = names(2);
    within(&plan(&names), |cluster| {
        let parts = Parts::given()?;
        let mut kubernetes = Kubernetes::start(cluster, &parts, Proxy::TopoLb, Progress::new())?;
        apply_tutorial(&kubernetes)?;
        tutorial_is_there(&kubernetes)?;
        pods_stay_in_their_pool(&kubernetes)?;
        let anywhere = node_port(&kubernetes, ANYWHERE)?;
        let pool_only = node_port(&kubernetes, SERVICE)?;
        for (pool, node) in POOLS {
            let address = kubernetes.kubectl(&["get", "node", node, "-o", ADDRESS])?;
            let outside = |port: &str| {
                let script = asking(&format!("{address}:{port}"));
                let mut curl = Command::new("sh");
                curl.args(["-c", &script]);
                cluster.fabric().run(|| printed(&mut curl)).map(|text| count(&text))
            };
            until("a node port that answers outside", SOON, || {
                let [any, own] = [outside(&anywhere)?, outside(&pool_only)?];
                let right = is_from_anywhere(&any) && only_from(pool, &own).is_ok();
                Ok(if right { Ok(()) } else { Err(format!("{node}: {any:?}, {own:?}")) })
            })?;
            // From both nodes' pods, at this node.
            for (from, _) in POOLS {
                let answers =
                    answers(&kubernetes, &client_of(from), &format!("{address}:{anywhere}"))?;
                ensure!(is_from_anywhere(&answers), "from a pod of {from} at {node}: {answers:?}");
            }
            let script = asking(&format!("127.0.0.1:{pool_only}"));
            let answers = count(&shell_on(kubernetes.worker(node)?, &script)?);
            only_from(pool, &answers).context("from the node itself")?;
        }
        Ok(())
    })
}

/// OpenYurt's tutorial after openyurt#2550.
#[test]
fn pools_that_are_zones_stay_closed_while_one_is_cut_off() -> Result<()> {
    requirements::command("curl", "curl")?;
    let names = names(2);
    within(&plan(&names), |cluster| {
        let parts = Parts::given()?;
        let mut kubernetes = Kubernetes::start(cluster, &parts, Proxy::Beside, Progress::new())?;
        name_zones_after_pools(&kubernetes)?;
        apply_tutorial(&kubernetes)?;
        close_by_zone(&kubernetes)?;
        tutorial_is_there(&kubernetes)?;
        a_pool_that_is_cut_off_stays_closed(&mut kubernetes, cluster)
    })
}

/// Where kubectl finds the address of a node.
const ADDRESS: &str = r#"jsonpath={.status.addresses[?(@.type=="InternalIP")].address}"#;

/// Gives a Service a node port.
fn node_port(kubernetes: &Kubernetes<'_>, service: &str) -> Result<String> {
    let patch = r#"{"spec": {"type": "NodePort"}}"#;
    kubernetes.kubectl(&["patch", "service", service, "-p", patch])?;
    kubernetes.kubectl(&["get", "service", service, "-o", "jsonpath={.spec.ports[0].nodePort}"])
}

/// Creates what OpenYurt's tutorial has.
fn apply_tutorial(kubernetes: &Kubernetes<'_>) -> Result<()> {
    let tutorial = deploy("examples/openyurt.yaml").display().to_string();
    kubernetes.kubectl(&["apply", "-f", &tutorial]).map(drop)
}

/// Waits until all its pods are Ready.
fn tutorial_is_there(kubernetes: &Kubernetes<'_>) -> Result<()> {
    for (pool, _) in POOLS {
        for number in [1, 2] {
            rolled_out(kubernetes, &format!("deployment/united-deployment{number}-{pool}"))?;
        }
    }
    Ok(())
}

fn limit() -> String {
    format!("--timeout={}s", patient(SOON).as_secs())
}

fn rolled_out(kubernetes: &Kubernetes<'_>, what: &str) -> Result<()> {
    kubernetes.kubectl(&["rollout", "status", what, &limit()]).map(drop)
}
