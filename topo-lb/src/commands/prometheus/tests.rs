//! Answers of a server that stands in for a Prometheus; the suite `prometheus` has a real one.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::thread;

use topo_lb_common::backend::Locality;
use topo_lb_core::what_if::Measured;
use topo_lb_kube::source::file;

use super::*;

/// A server that answers each request, line and headers, with what `answer` says: status and body.
fn serve(answer: impl Fn(&str) -> (u16, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    // It ends with the process of the tests.
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let mut stream = BufReader::new(stream);
            let mut request = String::new();
            while !request.ends_with("\r\n\r\n") && stream.read_line(&mut request).unwrap() > 0 {}
            let (status, body) = answer(&request);
            let length = body.len();
            let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n");
            // A client that reads no further is no fault of the server.
            let _ = write!(stream.get_mut(), "{head}Connection: close\r\n\r\n{body}");
        }
    });
    url
}

fn encoded(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// An answer with these samples: labels, and value.
fn vector(samples: &[(&str, &str)]) -> (u16, String) {
    let samples: Vec<_> = samples
        .iter()
        .map(|(metric, value)| format!(r#"{{"metric":{{{metric}}},"value":[1,"{value}"]}}"#))
        .collect();
    let result = samples.join(",");
    (200, format!(r#"{{"status":"success","data":{{"resultType":"vector","result":[{result}]}}}}"#))
}

const N1: (&str, &str) = (r#""node":"n1""#, "1");
const N2: (&str, &str) = (r#""node":"n2""#, "1");

const WEB: &str = r#""namespace":"shop","service":"web","port":"http""#;

/// The answers of a Prometheus that scrapes the agents of `n1`, and of `n2` for a short time.
fn usual(request: &str) -> (u16, String) {
    let web = |locality: &str| {
        format!(
            r#""node":"n1","namespace":"shop","service":"web","port":"http","locality":"{locality}""#
        )
    };
    let far = web("region");
    let direct = [(&*far, "9")];
    let is_of = |text: &str| request.contains(&encoded(text));
    if is_of("topo_lb_connections_total") {
        vector(&[(WEB, "2")])
    } else if is_of("topo_lb_wider_tier_connections") {
        vector(&[(WEB, "14")])
    } else if is_of("tier=\"direct\"") {
        vector(if is_of("sent_bytes") { &direct } else { &[] })
    } else if is_of("sent_bytes") {
        vector(&[(&web("node"), "1"), (&web("region"), "2"), (&web("zone"), "NaN")])
    } else if is_of("received_bytes") {
        vector(&[(&web("elsewhere"), "4")])
    } else if is_of("offset") {
        vector(&[N1])
    } else {
        assert!(is_of("count_over_time(topo_lb_ready[90m])"), "{request}");
        vector(&[N1, N2])
    }
}

fn state() -> State {
    let nodes = ["n1", "n2", "n3"]
        .map(|name| format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}}}\n"));
    let listing = file::parse(Path::new("nodes"), nodes.join("---\n").as_bytes()).unwrap();
    let mut state = State::default();
    for update in listing.updates {
        let _ = state.apply(update, "n1");
    }
    state
}

fn at(url: String) -> Prometheus {
    Prometheus { url, token_file: None, over: "90m".parse().unwrap() }
}

async fn asked(prometheus: &Prometheus) -> Result<(Figures, Vec<String>), PrometheusError> {
    prometheus.figures(&state()).await
}

/// The error of a server with this answer to everything.
async fn error(status: u16, body: &str) -> PrometheusError {
    let body = body.to_owned();
    let url = serve(move |_| (status, body.clone()));
    let error = asked(&at(url.clone())).await.expect_err("no figures");
    assert!(error.to_string().contains(&url), "{error}");
    error
}

#[tokio::test]
async fn both_directions_are_summed_and_what_is_missing_is_told() {
    let (figures, doubts) = asked(&at(serve(usual))).await.unwrap();
    let service = ServiceId { namespace: "shop".into(), name: "web".into() };
    let moved = |locality, bytes| Moved {
        node: Some("n1".into()),
        service: service.clone(),
        port: "http".into(),
        locality,
        is_direct: false,
        bytes,
    };
    let direct = Moved { is_direct: true, ..moved(Locality::Region, 9.0) };
    let all = [
        moved(Locality::Zone, 1.0),
        moved(Locality::Zone, f64::NAN),
        moved(Locality::Region, 2.0),
        moved(Locality::Elsewhere, 4.0),
        direct,
    ];
    let mut wanted = Figures::over("90m".into(), all);
    wanted.count_wider(service, "http".into(), Some(14), 2);
    assert_eq!(figures, wanted);
    let [odd, gone, nodes, late] = &doubts[..] else { panic!("{doubts:?}") };
    assert!(odd.ends_with("no counts of bytes, and left out: shop/web"), "{odd}");
    assert!(gone.contains("no Services of these names: shop/web"), "{gone}");
    assert!(nodes.ends_with("these nodes in the last 90m: n3"), "{nodes}");
    assert!(late.ends_with("a shorter time: n2"), "{late}");
}

/// Whether there were agents at the moment of this request, to a server that has metrics of 150 seconds; `None`: it
/// asks for something else.
fn young(request: &str) -> Option<(u16, String)> {
    let (_, rest) = request.split_once(&encoded("(topo_lb_ready offset "))?;
    let digits = rest.split('%').filter_map(|byte| u8::from_str_radix(byte.get(..2)?, 16).ok());
    let seconds: String = digits.map(char::from).take_while(char::is_ascii_digit).collect();
    let is_there = !rest.starts_with(&encoded("90m")) && seconds.parse::<u32>().unwrap() <= 150;
    Some(vector(if is_there { &[N1] } else { &[] }))
}

#[tokio::test]
async fn the_bytes_of_a_young_prometheus_are_of_the_time_that_it_has() {
    let url = serve(|request| young(request).unwrap_or_else(|| usual(request)));
    let (figures, doubts) = asked(&at(url)).await.unwrap();
    assert!(format!("{figures:?}").contains(r#"over: Some("150s")"#), "{figures:?}");
    let said = "of the last 150s alone, and not of 90m";
    assert!(doubts.iter().any(|one| one.contains(said)), "{doubts:?}");
    assert!(doubts.iter().all(|one| !one.contains("shorter time")), "{doubts:?}");
}

#[tokio::test]
async fn a_partial_answer_is_told_once() {
    let url = serve(|request| {
        let (status, body) = usual(request);
        (status, body.replacen('{', r#"{"warnings":["store 3 is away"],"#, 1))
    });
    let (_, doubts) = asked(&at(url)).await.unwrap();
    let partial: Vec<_> = doubts.iter().filter(|it| it.contains("partial")).collect();
    assert_eq!(partial, ["its answer is partial: store 3 is away"]);
}

#[tokio::test]
async fn metrics_without_the_label_node_are_told() {
    let url = serve(|request| {
        let (status, body) = usual(request);
        (status, body.replace(r#""node":"n1","#, "").replace(r#""node":"n1""#, ""))
    });
    let (_, doubts) = asked(&at(url)).await.unwrap();
    assert!(doubts.iter().any(|it| it.contains("set the label node")), "{doubts:?}");
}

#[tokio::test]
async fn the_token_of_the_file_is_sent() {
    let url = serve(|request| {
        let is_known = request.lines().any(|line| line == "authorization: Bearer s3cret");
        if is_known { usual(request) } else { (401, String::new()) }
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    let with = Prometheus { token_file: Some(file.path().to_owned()), ..at(url.clone()) };
    let wrong = asked(&with).await.expect_err("the file is empty");
    assert!(matches!(wrong, PrometheusError::Token(..)), "{wrong}");
    std::fs::write(file.path(), "s3cret\n").unwrap();
    assert!(asked(&with).await.is_ok());
    let without = asked(&at(url)).await.expect_err("it wants a token");
    assert!(matches!(without, PrometheusError::Unauthorized(_)), "{without}");
}

#[tokio::test]
async fn a_server_that_cannot_help_is_told_by_what_it_answers() {
    let other = error(200, "<html>").await;
    assert!(matches!(other, PrometheusError::NotPrometheus(..)), "{other}");
    let login = error(302, "").await;
    assert!(matches!(login, PrometheusError::NotPrometheus(..)), "{login}");
    let forbidden = error(403, "").await;
    assert!(matches!(forbidden, PrometheusError::Forbidden(_)), "{forbidden}");
    let away = error(502, "no upstream").await;
    assert!(matches!(away, PrometheusError::Away(..)), "{away}");
    let refused = error(422, r#"{"status":"error","error":"too many samples"}"#).await;
    assert!(refused.to_string().ends_with("too many samples"), "{refused}");
    let empty = error(200, &vector(&[]).1).await;
    assert!(matches!(empty, PrometheusError::NoMetrics { .. }), "{empty}");
}

#[tokio::test]
async fn a_server_that_is_not_there_cannot_be_reached() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = asked(&at(format!("http://{closed}"))).await.expect_err("nobody listens");
    assert!(matches!(error, PrometheusError::Unreachable(..)), "{error}");
    assert!(error.to_string().contains("refused"), "{error}");
    let error = asked(&at(format!("https://{}", &serve(usual)["http://".len()..]))).await;
    let error = error.expect_err("it speaks no TLS");
    assert!(matches!(error, PrometheusError::Insecure(..)), "{error}");
    for url in ["", "prometheus:9090", "ftp://x", "http://", "http://x/?query=y"] {
        let error = asked(&at(url.to_owned())).await.expect_err("no URL");
        assert!(matches!(error, PrometheusError::Url(_)), "{url}: {error}");
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_or_too_late_is_not_waited_for() {
    let limits = Limits { size: 10, ..LIMITS };
    let error = at(serve(usual)).figures_within(&state(), limits).await.expect_err("too large");
    assert!(matches!(error, PrometheusError::TooLarge(..)), "{error}");
    // It accepts connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let limits = Limits { time: Duration::from_millis(50), ..LIMITS };
    let url = format!("http://{}", silent.local_addr().unwrap());
    let error = at(url).figures_within(&state(), limits).await.expect_err("too late");
    assert!(matches!(error, PrometheusError::Late(..)), "{error}");
}

#[test]
fn a_time_is_a_number_and_a_unit() {
    for text in ["1d", "90m", "3600s", "2w", "65535h"] {
        assert_eq!(text.parse::<Over>().map(|over| over.0), Ok(text.into()));
    }
    for text in
        ["", "d", "0d", "1", "1y", "-1d", "+1d", "1.5h", "1d]) or vector(1", "65536s", "1d1h"]
    {
        assert!(text.parse::<Over>().is_err(), "{text}");
    }
}

#[tokio::test]
async fn since_a_moment_is_compared_with_as_long_before() {
    let answer = |request: &str| {
        let is_of = |text: &str| {
            let encoded: String = text.bytes().map(|byte| format!("%{byte:02X}")).collect();
            request.contains(&encoded)
        };
        let web = |locality: &str| {
            format!(r#""namespace":"shop","service":"web","locality":"{locality}""#)
        };
        if is_of("topo_lb_counting_all[90m] offset 90m") {
            vector(&[N2])
        } else if is_of("(topo_lb_ready offset 180m)") {
            vector(&[N1])
        } else if is_of("topo_lb_ready[90m] offset 90m") {
            vector(&[N1, (r#""node":"n3""#, "1")])
        } else if is_of("topo_lb_ready[90m]") {
            vector(&[N1, N2])
        } else if is_of("tier=\"direct\"") {
            vector(&[])
        } else if is_of("sent_bytes") && is_of("[90m] offset 90m") {
            vector(&[(&web("region"), "7"), (&web("moon"), "1")])
        } else if is_of("sent_bytes") {
            vector(&[(&web("node"), "5")])
        } else {
            assert!(is_of("received_bytes"), "{request}");
            vector(&[])
        }
    };
    let (bytes, doubts) = at(serve(answer)).since().await.unwrap();
    let measured = |locality, bytes| Measured {
        service: ServiceId { namespace: "shop".into(), name: "web".into() },
        locality,
        is_direct: false,
        bytes,
    };
    assert_eq!(bytes.before, [measured(Locality::Region, 7.0)]);
    assert_eq!(bytes.after, [measured(Locality::Node, 5.0)]);
    let [late, gone, partly] = &doubts[..] else { panic!("{doubts:?}") };
    assert!(late.starts_with("it has no metrics of 180m ago of these nodes"), "{late}");
    assert!(late.ends_with(": n2"), "{late}");
    assert_eq!(gone, "it has no metrics of these nodes in the last 90m: n3");
    assert!(
        partly.contains("not all agents counted everything (--count all) in the 90m"),
        "{partly}"
    );
}

#[tokio::test]
async fn nothing_is_compared_with_a_time_without_metrics() {
    let url = serve(|request| {
        let is_earlier = request.contains(&encoded("[90m] offset 90m"));
        young(request).unwrap_or_else(|| vector(if is_earlier { &[] } else { &[N1] }))
    });
    let error = at(url).since().await.expect_err("nothing of before").to_string();
    let said = "from before 90m ago, so nothing can be compared; it has those of the last 150s: try --since 75s";
    assert!(error.contains(said), "{error}");
}
