//! Quotas and the fence, in a user namespace of the container's own.

use integration::{ContainerBuilder, Node, hostile::PROGRAM, user_namespace::HOST_ROOT};
use serde_json::{Value, json};

use crate::{
    case::Case,
    memory::{assert_full, fill},
};

pub(crate) fn cases() -> Vec<Case> {
    let cases = vec![
        Case::egpu("gpu::a_quota_in_a_user_namespace", quota),
        Case::egpu("gpu::a_node_that_the_host_lacks", missing_node),
        Case::egpu("gpu::a_quota_beside_the_hosts_root", host_root),
        Case::egpu("gpu::a_whole_card_in_a_user_namespace", whole_card),
    ];
    cases.into_iter().map(|case| case.also_needing(integration::hostile::available)).collect()
}

/// With all capabilities, which are nothing on the host.
pub(crate) fn administrator(spec: &mut Value) {
    for set in ["bounding", "effective", "permitted"] {
        let held = spec["process"]["capabilities"][set].as_array_mut().unwrap();
        held.extend(
            ["CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_RAWIO", "CAP_SYS_MODULE", "CAP_NET_ADMIN"].map(Value::from),
        );
    }
}

fn granted<'node>(node: &'node Node, id: &str) -> ContainerBuilder<'node> {
    node.container(id).user_namespace().env("EGPU_DEVICES", "0").env("EGPU_MEMORY", "512MiB")
}

/// The mediator sees its callers, whoever they are in there, and their execs.
fn quota(node: &Node) {
    let container = granted(node, "a").edit(administrator).start().unwrap();
    let owner = format!(
        "stat -c %a /dev/nvidia0 && stat -c %u /proc/$$ && awk '{{ exit $2 != {HOST_ROOT} }}' /proc/self/uid_map"
    );
    assert_eq!(container.read(&owner), "666\n0");
    let (bytes, status) = fill(&container);
    assert_eq!(status, integration::hostile::OUT_OF_MEMORY);
    assert_full(bytes, 512);
    let as_user = container.exec("e", &[PROGRAM, "fill", "16"]).edit(|process| {
        process["user"] = json!({ "uid": 1000, "gid": 1000 });
    });
    let (_, output) = as_user.run().unwrap();
    assert_full(output.value("got").cast_unsigned(), 512);
    container.end();
}

/// As `/dev/nvidia0` where only containers use cards.
fn missing_node(node: &Node) {
    let builder = node.container("a").user_namespace().edit(|spec| {
        spec["linux"]["devices"] = json!([
            { "path": "/dev/of/its-own", "type": "c", "major": 1, "minor": 5, "fileMode": 0o666, "uid": 0, "gid": 0 }
        ]);
        spec["linux"]["resources"]["devices"] = json!([
            { "allow": false, "access": "rwm" }, { "allow": true, "type": "c", "major": 1, "minor": 5, "access": "rw" }
        ]);
    });
    let container = builder.start().unwrap();
    assert_eq!(container.read("stat -c %a:%t:%T /dev/of/its-own; head -c 3 /dev/of/its-own | wc -c"), "666:1:5\n3");
    assert!(!std::path::Path::new("/dev/of").exists());
    container.end();
}

/// Once nothing hides it, the host's root may write the driver's settings.
fn host_root(node: &Node) {
    let mapped = |spec: &mut Value| {
        spec["linux"]["uidMappings"] = json!([{ "containerID": 0, "hostID": 0, "size": 4_294_967_295_u32 }]);
    };
    let text = super::refused(granted(node, "a").edit(administrator).edit(mapped));
    assert!(text.contains("CAP_SYS_ADMIN in a user namespace that maps the host's uid 0"), "{text}");
    assert!(node.granted().is_empty());
}

fn whole_card(node: &Node) {
    let container = node.container("a").user_namespace().env("NVIDIA_VISIBLE_DEVICES", "1").start().unwrap();
    let listed = container.read("ls /dev; : >/dev/nvidia1");
    assert!(listed.contains("nvidia1\n") && listed.contains("nvidiactl"), "{listed}");
    container.end();
}
