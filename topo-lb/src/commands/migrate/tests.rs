use super::*;

/// A Service in block style, with comments.
fn service(metadata: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1 # of the core\nkind: Service\nmetadata:\n  name: web # the shop\n{metadata}\
         spec:\n  # where it goes\n{spec}  ports: [{{port: 80}}]\n"
    )
}

/// The only document after the migration.
fn only(text: &str) -> Document {
    let [document]: [Document; 1] = stream(text, false).unwrap().try_into().unwrap();
    document
}

#[test]
fn lines_change_and_comments_stay() {
    let hostname = "kubernetes.io/hostname";
    let open =
        |value| format!("  annotations:\n    # near\n    openyurt.io/topologyKeys: {value}\n");
    let annotated = |keys| format!("    topo-lb.io/topology-keys: \"{keys}\"\n");
    let made = |keys| format!("  annotations:\n{}", annotated(keys));
    for (metadata, spec, wanted, sentence) in [
        (
            String::new(),
            "  topologyKeys:\n  # first\n  - kubernetes.io/hostname\n  - \"*\"\n",
            made("kubernetes.io/hostname, *"),
            "default/web: spec.topologyKeys becomes topo-lb.io/topology-keys: kubernetes.io/hostname, *",
        ),
        (
            String::new(),
            "  topologyKeys: [\"*\"]\n",
            made("*"),
            "default/web: spec.topologyKeys becomes topo-lb.io/topology-keys: *",
        ),
        (
            open(hostname),
            "",
            format!("  annotations:\n    # near\n{}", annotated(hostname)),
            "default/web: annotation openyurt.io/topologyKeys becomes topo-lb.io/topology-keys: \
             kubernetes.io/hostname",
        ),
        (
            open("openyurt.io/nodepool"),
            "  topologyKeys:\n    - rack\n",
            format!(
                "  annotations:\n    # near\n{}",
                annotated("apps.openyurt.io/nodepool, kubernetes.io/hostname")
            ),
            "default/web: annotation openyurt.io/topologyKeys and spec.topologyKeys becomes \
             topo-lb.io/topology-keys: apps.openyurt.io/nodepool, kubernetes.io/hostname",
        ),
        (
            made("rack"),
            "  topologyKeys:\n    - zone\n",
            made("rack"),
            "default/web: spec.topologyKeys is taken away; topo-lb.io/topology-keys was there",
        ),
    ] {
        let document = only(&service(&metadata, spec));
        // A new block of annotations comes first.
        let bare = "  name: web # the shop\n";
        let wanted = if metadata.is_empty() {
            service("", "").replace(bare, &format!("{wanted}{bare}"))
        } else {
            service(&wanted, "")
        };
        assert_eq!(document.text, format!("---\n{wanted}"));
        assert_eq!((document.is_changed, document.sentences), (true, vec![sentence.to_owned()]));
    }
}

#[test]
fn a_preference_for_a_zone_is_closed_only_where_zones_are_pools() {
    for (preference, keys) in [
        ("PreferClose", "topology.kubernetes.io/zone, kubernetes.io/hostname"),
        ("PreferSameZone", "topology.kubernetes.io/zone, kubernetes.io/hostname"),
        ("PreferSameNode", "kubernetes.io/hostname, topology.kubernetes.io/zone"),
    ] {
        let spec = format!("  trafficDistribution: {preference} # near\n");
        let text = service("", &spec);
        let [plain]: [Document; 1] = stream(&text, false).unwrap().try_into().unwrap();
        assert_eq!((&plain.text, plain.is_changed, plain.sentences), (&text, false, vec![]));
        let [closed]: [Document; 1] = stream(&text, true).unwrap().try_into().unwrap();
        let bare = "  name: web # the shop\n";
        let annotated = format!("  annotations:\n    topo-lb.io/topology-keys: \"{keys}\"\n{bare}");
        assert_eq!(closed.text, format!("---\n{}", text.replace(bare, &annotated)));
        assert_eq!(closed.sentences.len(), 1, "{:?}", closed.sentences);
    }
    for spec in [
        "  trafficDistribution: Elsewhere\n",
        "  trafficDistribution: 1\n",
        "  clusterIP: None\n  trafficDistribution: PreferClose\n",
    ] {
        let [document]: [Document; 1] =
            stream(&service("", spec), true).unwrap().try_into().unwrap();
        assert!(!document.is_changed, "{document:?}");
    }
    // The empty field of Kubernetes 1.21 goes, too.
    let [both]: [Document; 1] =
        stream(&service("", "  topologyKeys: []\n  trafficDistribution: PreferClose\n"), true)
            .unwrap()
            .try_into()
            .unwrap();
    assert!(both.is_changed && !both.text.contains("topologyKeys"), "{both:?}");
    assert!(both.text.contains("topology-keys: \"topology.kubernetes.io/zone"), "{both:?}");
}

#[test]
fn lines_end_as_they_did() {
    let keys = "  topologyKeys:\n    - rack\n";
    let annotated = "  annotations:\n    openyurt.io/topologyKeys: kubernetes.io/hostname\n";
    let flow =
        "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {topologyKeys: [rack]}}\n";
    let text = [service("", ""), service("", keys), service(annotated, keys), flow.to_owned()];
    let text = text.join("---\n");
    let with_crlf = text.replace('\n', "\r\n");
    let all = |text: &str| -> String {
        stream(text, false).unwrap().iter().map(|document| document.text.as_str()).collect()
    };
    assert_eq!(all(&with_crlf), all(&text).replace('\n', "\r\n"));
}

#[test]
fn other_documents_stay_byte_for_byte() {
    let plain = service("", "");
    let other = "---\nkind: TopologyPolicy\nspec: {topologyKeys: [rack]}   # not a Service\n";
    let text = format!(
        "# first\n---\n{plain}{other}--- # the last\n{}",
        service("", "  topologyKeys: []\n")
    );
    let documents = stream(&text, false).unwrap();
    let changed: Vec<_> = documents.iter().map(|document| document.is_changed).collect();
    assert_eq!(changed, [false, false, false, true]);
    let all: String = documents.iter().map(|document| document.text.as_str()).collect();
    assert_eq!(all, text.replace("  topologyKeys: []\n", ""));
}

#[test]
fn what_would_mean_something_else_is_left_with_a_sentence() {
    for (metadata, spec, why) in [
        ("", "  topologyKeys: [\"*\", rack]\n", "move it to the end"),
        ("", "  topologyKeys: [rack, 1]\n", "not a list of texts"),
        ("  annotations: {openyurt.io/topologyKeys: \"a, b\"}\n", "", "is ignored"),
        (
            "  annotations: {openyurt.io/topologyKeys: kubernetes.io/hostname}\n",
            "  externalTrafficPolicy: Local\n",
            "exclude externalTrafficPolicy: Local",
        ),
    ] {
        let text = service(metadata, spec);
        let document = only(&text);
        assert_eq!((&document.text, document.is_changed), (&text, false));
        let [sentence] = &document.sentences[..] else { panic!("{document:?}") };
        assert!(sentence.starts_with("default/web is left as it is: "), "{sentence}");
        assert!(sentence.contains(why), "{sentence}");
    }
}

#[test]
fn what_is_not_in_block_style_is_written_anew_and_says_what_is_lost() {
    let flow = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {topologyKeys: [rack]}} # one\n";
    let document = only(flow);
    let object: Value = serde_saphyr::from_str(&document.text).unwrap();
    assert_eq!(object["metadata"]["annotations"]["topo-lb.io/topology-keys"], "rack");
    assert!(object["spec"].get("topologyKeys").is_none());
    assert!(document.sentences[1].contains("comments are lost"), "{document:?}");

    // What `kubectl get -o json` prints.
    let list = r#"{"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}, "spec": {"topologyKeys": ["*"]}},
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "b"}, "spec": {}}]}"#;
    let documents = stream(list, false).unwrap();
    let changed: Vec<_> = documents.iter().map(|document| document.is_changed).collect();
    assert_eq!(changed, [true, false]);
    assert_eq!(documents[0].sentences.len(), 1, "{documents:?}");
}

#[test]
fn objects_of_any_shape_are_no_danger() {
    let shapes = [
        "x",
        "[1]",
        "{}",
        "null",
        "{annotations: x}",
        "{annotations: {openyurt.io/topologyKeys: 1}}",
    ];
    for metadata in shapes {
        for spec in
            ["x", "null", "{topologyKeys: x}", "{topologyKeys: [a, 1]}", "{topologyKeys: {a: b}}"]
        {
            let text =
                format!("{{apiVersion: v1, kind: Service, metadata: {metadata}, spec: {spec}}}\n");
            assert_eq!(stream(&text, false).unwrap().len(), 1, "{text}");
        }
    }
    let lonely = only(
        "apiVersion: v1\nkind: Service\nmetadata:\n  annotations:\n    openyurt.io/topologyKeys: \
         kubernetes.io/hostname # here\n",
    );
    assert_eq!(lonely.sentences.len(), 1, "{lonely:?}");
    assert!(lonely.text.ends_with("    topo-lb.io/topology-keys: \"kubernetes.io/hostname\"\n"));
}

#[test]
fn a_template_is_no_yaml() {
    let error =
        stream("kind: Service\n---\nname: {{ .Values.name }}: x\n", false).unwrap_err().to_string();
    assert!(
        error.starts_with("document 2 is not YAML") && error.contains("helm template"),
        "{error}"
    );
}
