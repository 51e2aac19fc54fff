//! The id 4294967295, which system calls take for "leave as it is": whoever asked for it would be
//! root.

use integration::Node;
use serde_json::{Value, json};
use tonic::{Code, Status};

use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("ids::minus_one_is_refused_wherever_a_container_names_it", refused),
        Case::egpu("ids::minus_one_is_refused_of_an_exec", refused_of_an_exec),
        Case::egpu("ids::the_largest_that_there_are", largest),
    ]
}

const NO_ID: u32 = u32::MAX;

type Edit = fn(&mut Value);

#[track_caller]
fn names(field: &str, status: &Status) {
    let message = status.message();
    assert!(message.contains(field) && message.contains("the id 4294967295"), "{field}: {message}");
    assert_eq!(status.code(), Code::InvalidArgument, "{field}");
}

fn add_mount(spec: &mut Value, mount: Value) {
    spec["mounts"].as_array_mut().unwrap().push(mount);
}

/// A bind mount whose users are the host's from `id` on.
fn mapped(id: u32, size: u32) -> Value {
    json!({
        "destination": "/m", "type": "bind", "source": "/tmp", "options": ["rbind"],
        "uidMappings": [{ "containerID": 7, "hostID": id, "size": size }],
        "gidMappings": [{ "containerID": 7, "hostID": 5, "size": 1 }],
    })
}

fn refused(node: &Node) {
    let edits: [(&str, Edit); 8] = [
        ("process.user.uid", |spec| spec["process"]["user"]["uid"] = json!(NO_ID)),
        ("process.user.gid", |spec| spec["process"]["user"]["gid"] = json!(NO_ID)),
        ("process.user.additionalGids[0]", |spec| spec["process"]["user"]["additionalGids"] = json!([NO_ID])),
        ("mounts[7].uidMappings[0].hostID", |spec| add_mount(spec, mapped(NO_ID, 1))),
        ("mounts[7].uidMappings[0].size", |spec| add_mount(spec, mapped(NO_ID - 1, 2))),
        ("mounts[7].options[0]", |spec| {
            let options = ["gid=4294967295"];
            add_mount(spec, json!({ "destination": "/m", "type": "tmpfs", "source": "t", "options": options }));
        }),
        ("linux.devices[0].gid", |spec| {
            spec["linux"]["devices"] = json!([{ "path": "/dev/x", "type": "c", "major": 1, "minor": 3, "gid": NO_ID }]);
        }),
        ("linux.gidMappings[0].size", |spec| {
            spec["linux"]["gidMappings"] = json!([{ "containerID": 0, "hostID": 1, "size": NO_ID }]);
        }),
    ];
    for (field, edit) in edits {
        for builder in [node.container("a"), node.container("a").user_namespace()] {
            // With a share: what was granted is free again.
            let created = builder.env("EGPU_MEMORY", "1GiB").edit(edit).create();
            names(field, &created.map(drop).unwrap_err());
            assert!(node.granted().is_empty(), "{field}");
        }
    }
}

fn refused_of_an_exec(node: &Node) {
    for builder in [node.container("a"), node.container("b").user_namespace()] {
        let container = builder.start().unwrap();
        for (field, user) in [
            ("process.user.uid", json!({ "uid": NO_ID, "gid": 0 })),
            ("process.user.gid", json!({ "uid": 0, "gid": NO_ID })),
            ("process.user.additionalGids[1]", json!({ "uid": 0, "gid": 0, "additionalGids": [1, NO_ID] })),
        ] {
            let exec = container.exec("e", &["sh", "-c", "id; : >/tmp/ran"]).edit(|process| process["user"] = user);
            names(field, &exec.run().map(drop).unwrap_err());
        }
        assert_eq!(container.sh("ls /tmp/ran").0, 1, "it has run");
        container.end();
    }
}

fn largest(node: &Node) {
    for id in [NO_ID - 1, 1 << 31] {
        let user = json!({ "uid": id, "gid": id, "additionalGids": [id] });
        let edit = |spec: &mut Value| spec["process"]["user"] = user.clone();
        let (_, output) = node.container("a").edit(edit).script("id -u; id -G").run().unwrap();
        assert_eq!(output.stdout(), format!("{id}\n{id}\n"));
    }
}
