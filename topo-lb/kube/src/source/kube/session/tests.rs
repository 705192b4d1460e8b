use std::net::TcpListener;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::time::timeout;
use topo_lb_fake_api::{FakeApi, NODES, SERVICES, SLICES};

use crate::source::Event;
use crate::source::kube::connect::connect_with;
use crate::source::kube::fake::PATIENT;
use crate::source::kube::{KubeTarget, Nodes, follow};
use topo_lb_core::cluster::{Change, KnownNodes, Update};

const PATIENCE: Duration = Duration::from_secs(30);

fn api(listener: TcpListener) -> FakeApi {
    FakeApi::start(listener, &[NODES, SERVICES, SLICES]).expect("a server")
}

fn service(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "default"},
           "spec": {"clusterIP": "10.96.0.5", "ports": [{"port": 80}]}})
}

/// Waits until a Service of this name comes.
async fn comes(events: &mut (impl Stream<Item = Event> + Unpin), name: &str) {
    let wanted = async {
        loop {
            let event = events.next().await.expect("it never ends");
            if let Event::Update(Update::Service(change @ Change::Applied(_))) = event
                && change.clone().into_objects().iter().any(|it| &*it.id.name == name)
            {
                return;
            }
        }
    };
    timeout(PATIENCE, wanted).await.unwrap_or_else(|_| panic!("{name} has not come"));
}

#[tokio::test]
async fn the_first_server_that_can_be_reached_is_followed_and_the_first_of_all_again_when_it_is_back()
 {
    // Nobody listens at the port while this socket has it.
    let place = TcpSocket::new_v4().expect("a socket");
    place.bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let first = place.local_addr().expect("an address");
    let second = api(TcpListener::bind("127.0.0.1:0").expect("a port"));
    second.fill(SERVICES, [service("of-the-second")]);
    let servers = [format!("http://{first}"), second.url()].map(KubeTarget::Server);
    let target = KubeTarget::InOrder(servers.into());
    let server = connect_with(&target, PATIENT).await.expect("a server");
    assert_eq!(server.url(), format!("http://{first}, {}", second.url()));
    let (_wanted, wanted) = watch::channel(KnownNodes::All);
    let mut events = Box::pin(follow(server, Nodes::new("n1".into(), wanted)));
    comes(&mut events, "of-the-second").await;

    let place = place.listen(16).and_then(tokio::net::TcpListener::into_std);
    let back = api(place.expect("a listener"));
    // The servers have different objects, so that the test can tell them apart. Neither goes on from a
    // version of the other, so that a watch finds out, too, and not only a listing. While the first is
    // asked, other requests go to the second: what began there would stay there for minutes.
    back.forget(SERVICES, [service("of-the-first")]);
    second.forget(SERVICES, []);
    second.state().refuse.insert(SERVICES, (503, "the server is overloaded"));
    second.hang_up();
    comes(&mut events, "of-the-first").await;

    second.forget(SERVICES, [service("of-the-second-again")]);
    second.state().refuse.clear();
    drop(back);
    comes(&mut events, "of-the-second-again").await;
}

#[test]
fn only_servers_with_credentials_are_written_to() {
    let plain = KubeTarget::Server("http://127.0.0.1:10261".to_owned());
    let of = |all: &[KubeTarget]| KubeTarget::InOrder(all.to_vec()).with_credentials();
    assert_eq!(plain.with_credentials(), None);
    assert_eq!(KubeTarget::Inferred.with_credentials(), Some(KubeTarget::Inferred));
    assert_eq!(of(&[plain.clone(), KubeTarget::Inferred]), Some(KubeTarget::Inferred));
    assert_eq!(of(&[plain.clone(), plain]), None);
}
