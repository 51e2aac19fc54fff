#![allow(clippy::needless_pass_by_value, reason = "a literal of JSON is written where it is used")]

use serde_json::{Value, json};

use super::*;
use crate::selectors;

fn container(name: &str, limits: Value) -> Value {
    json!({"name": name, "resources": {"limits": limits}})
}

fn pod(metadata: Value, spec: Value) -> Pod {
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap()
}

fn read(pod: &Pod) -> Result<Asked, String> {
    of_pod(pod, &Settings::default()).map_err(|error| base::error_chain(&error))
}

/// The demands of a pod whose containers have these limits.
fn limits(all: &[Value]) -> Result<Vec<Demand>, String> {
    let containers: Vec<Value> = all.iter().map(|limits| container("main", limits.clone())).collect();
    cards(&pod(json!({}), json!({"containers": containers}))).map(|asked| asked.demands)
}

fn cards(pod: &Pod) -> Result<PodDemand, String> {
    match read(pod)? {
        Asked::Cards(asked) => Ok(*asked),
        other => Err(format!("{other:?}")),
    }
}

/// A demand in few words: `2 x 3000Mi 30% low`.
fn words(demand: &Demand) -> String {
    let memory = match demand.memory {
        Memory::Whole => "whole".to_owned(),
        Memory::Bytes(bytes) => Quantity(bytes).to_string(),
        Memory::Percent(percent) => format!("{percent}% of memory"),
    };
    let compute = demand.compute.map(|percent| format!("{percent}%"));
    let settings = demand.config.settings().map(|(name, value)| format!("{name} {value}"));
    let parts: Vec<String> = [memory].into_iter().chain(compute).chain(settings).collect();
    format!("{} x {}", demand.cards, parts.join(" "))
}

fn described(result: Result<Vec<Demand>, String>) -> String {
    result.map_or_else(|error| error, |demands| demands.iter().map(words).collect::<Vec<_>>().join("; "))
}

#[test]
fn hamis_resources_are_read() {
    for (limits_of_main, expected) in [
        (
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}),
            "1 x 3000Mi 30% priority low",
        ),
        (json!({"nvidia.com/gpumem": "3k"}), "1 x 3000Mi priority low"),
        (
            json!({"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "50", "nvidia.com/priority": "0"}),
            "2 x 50% of memory priority high",
        ),
        (json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "100"}), "1 x whole priority low"),
        (json!({"nvidia.com/gpucores": "100", "nvidia.com/priority": "1"}), "1 x whole 100% priority low"),
        (
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "0", "nvidia.com/gpucores": "0"}),
            "1 x whole priority low",
        ),
        (json!({"nvidia.com/gpumem": "-1"}), "container main: nvidia.com/gpumem: `-1` is negative"),
        (json!({"nvidia.com/gpumem": "1500m"}), "container main: nvidia.com/gpumem: `1500m` is not a whole number"),
        (
            json!({"nvidia.com/gpumem": "1", "nvidia.com/gpucores": "101"}),
            "container main: nvidia.com/gpucores: 101; 0 to 100 percent is accepted",
        ),
        (
            json!({"nvidia.com/gpu": "33", "nvidia.com/gpumem": "1"}),
            "container main: nvidia.com/gpu: 33; 1 to 32 cards is accepted",
        ),
        (
            json!({"nvidia.com/gpumem": "17592186044416"}),
            "container main: nvidia.com/gpumem: 17592186044416; MiB, such as 3000, and less than 2^44, is accepted",
        ),
        (
            json!({"nvidia.com/gpumem": "1", "nvidia.com/priority": "2"}),
            "container main: nvidia.com/priority: 2; 0 (high) or 1 (low) is accepted",
        ),
        (json!({"nvidia.com/gpumem": "1", "nvidia.com/gpumem-percentage": "1"}), "1 x 1Mi priority low"),
    ] {
        assert_eq!(described(limits(std::slice::from_ref(&limits_of_main))), expected, "{limits_of_main}");
    }
}

#[test]
fn defaults_are_the_settings() {
    let mut settings = Settings::default();
    settings.hami =
        crate::settings::Hami { default_memory: 4096, default_cores: 20, default_count: 2, ..settings.hami };
    let of = |limits: Value| {
        let pod = pod(json!({}), json!({"containers": [container("main", limits)]}));
        match of_pod(&pod, &settings).unwrap() {
            Asked::Cards(asked) => described(Ok(asked.demands)),
            other => format!("{other:?}"),
        }
    };
    assert_eq!(of(json!({"nvidia.com/gpucores": "10"})), "2 x 4Gi 10% priority low");
    assert_eq!(of(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"})), "1 x 1Mi 20% priority low");
    assert_eq!(
        of(json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1", "nvidia.com/gpucores": "0"})),
        "1 x 1Mi priority low"
    );
}

#[test]
fn whole_cards_alone_are_hamis_where_the_settings_say_so_or_beside_a_share() {
    let whole = json!({"nvidia.com/gpu": "2"});
    let share = json!({"nvidia.com/gpumem": "1024"});
    let alone = pod(json!({}), json!({"containers": [container("main", whole.clone())]}));
    assert_eq!(read(&alone), Ok(Asked::Nothing));
    let settings = Settings { whole_cards: true, ..Settings::default() };
    let Asked::Cards(asked) = of_pod(&alone, &settings).unwrap() else { panic!("nothing") };
    assert_eq!(described(Ok(asked.demands)), "2 x whole priority low");
    assert_eq!(described(limits(&[whole, share])), "2 x whole priority low; 1 x 1Gi priority low");
    let none = json!({"nvidia.com/gpu": "0", "nvidia.com/gpumem": "1"});
    assert_eq!(limits(&[none]).unwrap_err(), "Nothing");
}

#[test]
fn hamis_choices_of_cards_and_nodes_are_kept_and_others_are_told() {
    let annotations = json!({
        "nvidia.com/use-gputype": "A100,V100", "nvidia.com/nouse-gputype": "T4", "nvidia.com/use-gpuuuid": "GPU-1",
        "nvidia.com/nouse-gpuuuid": "GPU-2", "hami.io/node-scheduler-policy": "spread", "hami.io/gpu-scheduler-policy": "binpack",
    });
    let spec = json!({"containers": [container("main", json!({"nvidia.com/gpumem": "1"}))]});
    let asked = cards(&pod(json!({"annotations": annotations}), spec)).unwrap();
    let expected = [
        selectors::of_types(["A100", "V100"]),
        selectors::not(&selectors::of_types(["T4"])),
        selectors::of_uuids(["GPU-1"]),
    ];
    assert_eq!(asked.demands[0].selectors, expected);
    assert_eq!(asked.node_placement, Some("spread"));
    assert!(
        asked.notes.len() == 1 && asked.notes[0].starts_with("hami.io/gpu-scheduler-policy has no effect"),
        "{:?}",
        asked.notes
    );
}

#[test]
fn acks_resources_are_read() {
    for (limits_of_main, expected) in [
        (json!({"aliyun.com/gpu-mem": "3", "aliyun.com/gpu-core.percentage": "30"}), "1 x 3Gi 30%"),
        (json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "2"}), "2 x 4Gi"),
        (
            json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "3"}),
            "container main: aliyun.com/gpu-mem: 8; a multiple of the number of cards: each gives an equal part; that is accepted",
        ),
        (
            json!({"aliyun.com/gpu-core.percentage": "30"}),
            "container main asks for aliyun.com/gpu-core.percentage without aliyun.com/gpu-mem: name both, or neither",
        ),
        (
            json!({"aliyun.com/gpu-mem": "8", "aliyun.com/gpu-count": "2", "aliyun.com/gpu-core.percentage": "30"}),
            "container main asks for aliyun.com/gpu-core.percentage and for 2 cards: name one of them",
        ),
        (
            json!({"aliyun.com/gpu-mem": "lots"}),
            "container main: aliyun.com/gpu-mem: `lots` is no quantity; write 20Gi, 20000000000 or 25",
        ),
        (
            json!({"aliyun.com/gpu-mem": "1", "nvidia.com/gpumem": "1"}),
            "the pod asks by HAMi's resources and by ACK's resources: use one of them",
        ),
    ] {
        assert_eq!(described(limits(std::slice::from_ref(&limits_of_main))), expected, "{limits_of_main}");
    }
}

#[test]
fn acks_labels_choose_cards_and_their_number() {
    let selector = json!({"aliyun.accelerator/nvidia_name": "Tesla-V100-SXM2-32GB", "ack.node.gpu.schedule": "cgpu",
                          "ack.node.gpu.placement": "spread", "zone": "a"});
    let containers = [container("main", json!({"aliyun.com/gpu-mem": "8"})), container("side", json!({}))];
    let spec = json!({"nodeSelector": selector, "containers": containers});
    let asked = cards(&pod(json!({"labels": {"aliyun.com/gpu-count": "2"}}), spec.clone())).unwrap();
    assert_eq!(asked.demands.iter().map(words).collect::<Vec<_>>(), ["2 x 4Gi"]);
    assert_eq!(asked.demands[0].selectors, [selectors::of_types(["tesla v100 sxm2 32gb"])]);
    assert_eq!(
        asked.node_selector,
        ["aliyun.accelerator/nvidia_name", "ack.node.gpu.schedule", "ack.node.gpu.placement"]
    );
    assert_eq!(asked.node_placement, Some("spread"));
    let wrong = cards(&pod(json!({"labels": {"aliyun.com/gpu-count": "two"}}), spec));
    assert_eq!(wrong.unwrap_err(), "container main: aliyun.com/gpu-count: two; 1 to 32 cards is accepted");
}

#[test]
fn a_pod_that_names_its_node_gets_no_claim() {
    let resources = json!({"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000}});
    let placed = |metadata: Value, resources: Value| {
        read(&pod(metadata, json!({"nodeName": "n1", "containers": [{"name": "main", "resources": resources}]})))
    };
    assert!(matches!(placed(json!({}), resources), Ok(Asked::Nothing)));
    let own = json!({"annotations": {"egpu.io/memory": "6GiB"}});
    assert!(matches!(placed(own, json!({})), Ok(Asked::OfItsNode(_))));
    let mirror = json!({"annotations": {"egpu.io/memory": "6GiB", MIRROR: "hash"}});
    assert!(matches!(placed(mirror, json!({})), Ok(Asked::Nothing)));
}

fn annotated(annotations: &[(&str, &str)], containers: Value) -> Pod {
    let annotations: std::collections::BTreeMap<_, _> = annotations.iter().copied().collect();
    pod(json!({"annotations": annotations}), containers)
}

#[test]
fn annotations_are_read_as_a_node_does() {
    let of = |annotations: &[(&str, &str)]| {
        read(&annotated(annotations, json!({"containers": [{"name": "main"}]}))).map(|asked| match asked {
            Asked::Cards(asked) => {
                let selectors = asked.demands[0].selectors.clone();
                [vec![described(Ok(asked.demands))], selectors, asked.notes].concat().join(" | ")
            }
            Asked::OfItsNode(why) => why,
            Asked::Nothing => "nothing".to_owned(),
        })
    };
    let soft = "device.attributes[\"gpu.egpu.io\"].policy == \"soft\"";
    let beside =
        "container main is for its node alone: it asks in another language as well, of which the tighter holds there";
    for (annotations, expected) in [
        (&[("egpu.io/memory", "6GiB"), ("egpu.io/compute", "25%")][..], "1 x 6Gi 25%"),
        (&[("egpu.io/memory", "40%"), ("egpu.io/cards", "2"), ("egpu.io/oom", "kill")], "2 x 40% of memory oom kill"),
        (&[("egpu.io/cards", "1")], "1 x whole"),
        (&[("egpu.io/memory", "3000000000B")], "1 x 2929687Ki"),
        (&[("egpu.io/memory", "1GiB"), ("egpu.io/weight", "3")], &format!("1 x 1Gi policy soft weight 3 | {soft}")),
        (
            &[("egpu.io/memory", "1GiB"), ("egpu.io/isolation", "none"), ("egpu.io/priority", "low")],
            "1 x 1Gi priority low isolation none",
        ),
        (
            &[("egpu.io/devices", "GPU-6918e837-0b5e-4a55-9d5e-2d3c0d4f0a11"), ("egpu.io/memory", "1GiB")],
            "1 x 1Gi | device.attributes[\"gpu.egpu.io\"].uuid in [\"GPU-6918e837-0b5e-4a55-9d5e-2d3c0d4f0a11\"]",
        ),
        (
            &[("egpu.io/memory", "1GiB"), ("egpu.io/placement", "spread")],
            "1 x 1Gi | egpu.io/placement has no effect: a claim cannot say it",
        ),
        (&[("egpu.io/devices", "all")], "container main is for its node alone: a claim asks for a number of cards"),
        (&[("egpu.io/memory", "1GiB"), ("gpu-fraction", "0.5")], beside),
        (&[("egpu.io/memory", "1GiB"), ("nvidia.com/container.main.gpu-memory.limit", "2Gi")], beside),
        (&[("egpu.io/memory", "1GiB"), ("nvidia.com/container.other.gpu-memory.limit", "2Gi")], "1 x 1Gi"),
        (
            &[("egpu.io/devices", "0"), ("egpu.io/memory", "1GiB")],
            "container main is for its node alone: a claim chooses cards by their UUIDs",
        ),
        (
            &[("egpu.io/memory", "1GiB,2GiB"), ("egpu.io/cards", "2")],
            "container main is for its node alone: its shares of several cards differ",
        ),
        (&[("egpu.io/placement", "spread")], "nothing"),
        (&[("egpu.io/node-placement", "spread")], "nothing"),
    ] {
        assert_eq!(of(annotations).unwrap(), expected, "{annotations:?}");
    }
    for (annotation, value, named) in [("egpu.io/memory", "lots", "lots"), ("egpu.io/memroy", "1GiB", "egpu.io/memory")]
    {
        let error = of(&[(annotation, value)]).unwrap_err();
        assert!(error.starts_with("container main: ") && error.contains(named), "{error}");
    }
}

#[test]
fn containers_of_a_pod_have_a_share_each_and_those_that_end_before_have_theirs() {
    let spec = json!({
        "containers": [{"name": "one"}, {"name": "two", "env": [{"name": "EGPU_COMPUTE", "value": "10%"}]}],
        "initContainers": [{"name": "first"}, {"name": "proxy", "restartPolicy": "Always"}],
    });
    let asked = cards(&annotated(&[("egpu.io/memory", "1GiB")], spec)).unwrap();
    assert_eq!(asked.demands.iter().map(words).collect::<Vec<_>>(), ["1 x 1Gi", "1 x 1Gi 10%", "1 x 1Gi"]);
    let uses: Vec<_> = asked.uses.iter().map(|used| (used.list.field(), used.container, used.demand)).collect();
    assert_eq!(uses, [("containers", 0, 0), ("containers", 1, 1), ("initContainers", 0, 0), ("initContainers", 1, 2)]);
}

#[test]
fn a_variable_from_elsewhere_is_read_by_the_node() {
    let of = |name: &str| {
        let from = json!({"name": name, "valueFrom": {"configMapKeyRef": {"name": "shares", "key": "it"}}});
        read(&annotated(&[("egpu.io/memory", "1GiB")], json!({"containers": [{"name": "main", "env": [from]}]})))
            .unwrap()
    };
    for name in ["EGPU_MEMORY", "GPU_PORTION"] {
        let why = "container main is for its node alone: a variable asks as well whose value is not in the pod";
        assert_eq!(of(name), Asked::OfItsNode(why.to_owned()), "{name}");
    }
    assert!(matches!(of("PASSWORD"), Asked::Cards(_)));
}

#[test]
fn languages_are_not_mixed() {
    let containers = json!({"containers": [container("main", json!({"nvidia.com/gpumem": "1024"}))]});
    let error = read(&annotated(&[("egpu.io/compute", "10%")], containers.clone())).unwrap_err();
    assert_eq!(error, "the pod asks by HAMi's resources and by annotations egpu.io/*: use one of them");
    let placed = cards(&annotated(&[("egpu.io/node-placement", "spread")], containers));
    assert_eq!(placed.map(|asked| asked.demands.len()), Ok(1));
}

#[test]
fn pods_of_others_are_left_alone() {
    let asks = container("main", json!({"nvidia.com/gpumem": "1024"}));
    for (field, other) in [("runtimeClassName", "nvidia"), ("schedulerName", "hami-scheduler")] {
        let pod = pod(json!({}), json!({"containers": [asks.clone()], field: other}));
        assert_eq!(read(&pod), Ok(Asked::Nothing), "{other}");
    }
    let ours = json!({"containers": [asks], "runtimeClassName": "egpu", "schedulerName": "default-scheduler"});
    assert!(matches!(read(&pod(json!({}), ours)), Ok(Asked::Cards(_))));
    let with_claim =
        json!({"containers": [{"name": "main"}], "resourceClaims": [{"name": "gpu", "resourceClaimName": "mine"}]});
    assert_eq!(read(&annotated(&[("egpu.io/memory", "1GiB")], with_claim)), Ok(Asked::Nothing));
}

#[test]
fn examples_ask_for_what_their_comments_say() {
    for name in ["hami", "ack"] {
        let path = format!("{}/../../examples/kubernetes/webhook-{name}.yaml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&path).unwrap();
        let comment = text.lines().find_map(|line| line.strip_prefix("# asks for: ")).unwrap();
        let pod: Pod = serde_norway::from_str(&text).unwrap();
        assert_eq!(described(cards(&pod).map(|asked| asked.demands)), comment, "{path}");
    }
}
