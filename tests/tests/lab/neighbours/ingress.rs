//! Ingresses: reverse proxies in a Pod, with a Service as upstream, and with pods.

use std::net::SocketAddr;

use anyhow::Result;
use topo_lb_tests::scene::FOLLOWS;
use topo_lb_tests::town::{Town, WEB4, visit};
use topo_lb_tests::traffic::Via;

/// Ports of the ingress: one whose upstream is the Service, one whose upstreams are the pods of both zones.
const OF_SERVICE: u16 = 8_080;
const OF_PODS: u16 = 8_081;

/// An ingress in the pod `next`, by this program with a file that `configuration` makes of the pods' addresses.
fn ingress(
    words: &[&str],
    file: &str,
    configuration: impl Fn(&[String; 2]) -> String,
) -> Result<()> {
    visit(|town| {
        town.has(
            |town| {
                let pods = ["near", "far"].map(|pod| town.objects.address(pod));
                let [near, far] = pods;
                let text = configuration(&[near?, far?].map(|it| format!("{it}:9376")));
                town.rooms[0].write(file, &text)?;
                town.rooms[0].start_in_pod("ingress", words, town.pod("next")?)
            },
            through,
        )
    })
}

/// Checks that the ingress keeps to its zone by the Service, and does not where it chooses itself.
fn through(town: &mut Town<'_>) -> Result<()> {
    let next = town.objects.address("next")?;
    let at = |port| SocketAddr::from((next, port));
    town.outside.wait_for(Via::Http, at(OF_SERVICE), &["near"], FOLLOWS)?;
    town.outside.wait_for(Via::Http, at(OF_PODS), &["near", "far"], FOLLOWS)?;
    Ok(())
}

#[test]
fn nginx() -> Result<()> {
    ingress(
        &["/usr/sbin/nginx", "-c", "/etc/nginx/lab.conf", "-g", "daemon off;"],
        "/etc/nginx/lab.conf",
        |[near, far]| {
            format!(
                "user root; error_log stderr; pid /run/nginx.pid; events {{}}
                http {{
                    access_log off;
                    upstream pods {{ server {near}; server {far}; }}
                    server {{ listen {OF_SERVICE}; location / {{ proxy_pass http://{WEB4}; }} }}
                    server {{ listen {OF_PODS}; location / {{ proxy_pass http://pods; }} }}
                }}"
            )
        },
    )
}

#[test]
fn haproxy() -> Result<()> {
    ingress(
        &["/usr/sbin/haproxy", "-db", "-f", "/etc/haproxy/lab.cfg"],
        "/etc/haproxy/lab.cfg",
        |[near, far]| {
            format!(
                "defaults
                    mode http
                    timeout connect 5s
                    timeout client 5s
                    timeout server 5s
                listen service
                    bind :{OF_SERVICE}
                    server web {WEB4}:80
                listen pods
                    bind :{OF_PODS}
                    server near {near}
                    server far {far}\n"
            )
        },
    )
}
