//! Mounts that come and go while a container runs, as drivers of volumes make them.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use integration::{ContainerBuilder, Node};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::{Value, json};

use crate::case::{Case, Skip};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::plain("mounts::shared_ones_go_both_ways", shared_ones_go_both_ways),
        Case::plain("mounts::slaves_receive_only", slaves_receive_only),
        Case::plain("mounts::private_ones_stay", private_ones_stay),
        Case::plain("mounts::each_has_its_own_propagation", each_has_its_own_propagation),
        Case::plain("mounts::sysfs_is_read_only_but_never_the_hosts", sysfs_is_read_only_but_never_the_hosts),
        Case::plain(
            "mounts::a_device_directory_of_the_hosts_gets_no_devices",
            a_device_directory_of_the_hosts_gets_no_devices,
        ),
        Case::plain("mounts::read_only_file_systems_have_mounts_in_them", read_only_file_systems_have_mounts_in_them),
        Case::plain("mounts::read_only_devices_and_a_terminal", read_only_devices_and_a_terminal),
        Case::plain("mounts::read_only_paths_execute", read_only_paths_execute),
        Case::plain(
            "mounts::a_link_of_the_images_leads_nowhere_in_procfs",
            a_link_of_the_images_leads_nowhere_in_procfs,
        ),
        Case::egpu("mounts::a_link_of_the_images_at_dev_leads_nowhere_on_the_host", a_link_at_dev),
        Case::plain("mounts::links_of_the_images_to_what_is_missing", links_to_what_is_missing),
        Case::plain("mounts::destinations_are_cleaned", destinations_are_cleaned),
        Case::egpu("mounts::a_volume_behind_a_link_to_dev_keeps_its_mode", a_volume_behind_a_link_to_dev),
        Case::egpu("mounts::ids_are_mapped", ids_are_mapped).needing(tmpfs_maps_ids),
        Case::egpu("mounts::ids_that_cannot_be_mapped_are_refused", ids_that_cannot_be_mapped_are_refused),
        Case::plain(
            "mounts::user_namespaces_get_what_their_root_cannot_reach",
            user_namespaces_get_what_their_root_cannot_reach,
        ),
    ]
}

/// A directory of the node whose mounts are shared, as a node's `/` is under systemd.
struct Shared(PathBuf);

impl Shared {
    fn new(node: &Node) -> Self {
        Self::named(node, "volumes")
    }

    fn named(node: &Node, name: &str) -> Self {
        let directory = node.directory().join(name);
        for name in ["host", "container"] {
            std::fs::create_dir_all(directory.join(name)).unwrap();
        }
        mount(Some(&directory), &directory, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        mount(None::<&str>, &directory, None::<&str>, MsFlags::MS_SHARED, None::<&str>).unwrap();
        Self(directory)
    }

    /// A file system appears in `host/` while the container runs; its file is there and nowhere
    /// else.
    fn mount_on_host(&self) {
        let target = self.0.join("host");
        mount(Some("test"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        std::fs::write(target.join("file"), "").unwrap();
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for directory in [self.0.join("container"), self.0.join("host"), self.0.clone()] {
            let _ = umount2(&directory, MntFlags::MNT_DETACH);
        }
    }
}

/// A container with the volume, as CRI writes one: mounts something in it, then tells whether it
/// sees what the host mounted.
fn with_volume<'node>(node: &'node Node, volume: &Path, propagation: &'static str) -> ContainerBuilder<'node> {
    let script = "mount -t tmpfs test /volumes/container && touch /volumes/container/file && echo mounted; read line; \
                  [ -e /volumes/host/file ] && echo seen; exit 0";
    let volume = volume.display().to_string();
    node.container("a").stdin().script(script).edit(move |spec| {
        spec["linux"]["rootfsPropagation"] = json!(propagation);
        let mount = json!({
            "destination": "/volumes", "type": "bind", "source": volume, "options": ["rbind", propagation, "rw"],
        });
        spec["mounts"].as_array_mut().unwrap().push(mount);
        for set in ["bounding", "effective", "permitted"] {
            spec["process"]["capabilities"][set].as_array_mut().unwrap().push(json!("CAP_SYS_ADMIN"));
        }
    })
}

/// Returns whether the container's mount reached the host, and the host's the container.
fn reaches(node: &Node, propagation: &'static str) -> (bool, bool) {
    let volume = Shared::new(node);
    let mut container = with_volume(node, &volume.0, propagation).start().unwrap();
    container.stdio.wait_for("mounted");
    let out = volume.0.join("container/file").exists();
    volume.mount_on_host();
    container.stdio.write(b"go\n");
    assert_eq!(container.wait().unwrap(), 0);
    container.delete().unwrap();
    (out, container.stdio.finish().stdout().contains("seen\n"))
}

fn shared_ones_go_both_ways(node: &Node) {
    assert_eq!(reaches(node, "rshared"), (true, true));
}

fn slaves_receive_only(node: &Node) {
    assert_eq!(reaches(node, "rslave"), (false, true));
}

fn private_ones_stay(node: &Node) {
    assert_eq!(reaches(node, "rprivate"), (false, false));
}

fn bind(destination: &str, source: &Path, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": "bind", "source": source, "options": options })
}

fn push(spec: &mut Value, mount: Value) {
    spec["mounts"].as_array_mut().unwrap().push(mount);
}

/// Mounts that CRI writes for a pod's container with a volume of each kind, and the same without a
/// word about the root, as `ctr`.
fn each_has_its_own_propagation(node: &Node) {
    let script = "for kind in private slave shared; do mount -t tmpfs test /$kind/container; touch /$kind/container/file; done;
                  echo mounted; read line; for kind in private slave shared; do [ ! -e /$kind/host/file ] || echo seen $kind; done";
    for propagation in [json!("rshared"), json!("rslave"), Value::Null] {
        let volumes = ["private", "slave", "shared"].map(|kind| (kind, Shared::named(node, kind)));
        let mounts = volumes
            .each_ref()
            .map(|(kind, volume)| bind(&format!("/{kind}"), &volume.0, &["rbind", &format!("r{kind}"), "rw"]));
        let asked = propagation.clone();
        let edit = move |spec: &mut Value| {
            spec["linux"]["rootfsPropagation"] = asked;
            mounts.into_iter().for_each(|mount| push(spec, mount));
            for set in ["bounding", "effective", "permitted"] {
                spec["process"]["capabilities"][set].as_array_mut().unwrap().push(json!("CAP_SYS_ADMIN"));
            }
        };
        let mut container = node.container("a").stdin().script(script).edit(edit).start().unwrap();
        container.stdio.wait_for("mounted");
        let reached = volumes.each_ref().map(|(kind, volume)| (*kind, volume.0.join("container/file").exists()));
        volumes.iter().for_each(|(_, volume)| volume.mount_on_host());
        container.stdio.write(b"go\n");
        container.wait().unwrap();
        container.delete().unwrap();
        // Under rslave a shared mount is so among the container's own alone.
        let reaches = propagation == "rshared";
        assert_eq!(reached, [("private", false), ("slave", false), ("shared", reaches)], "{propagation}");
        assert_eq!(
            container.stdio.finish().stdout().replace("mounted\n", ""),
            "seen slave\nseen shared\n",
            "{propagation}"
        );
    }
}

/// The flags of the file system at `/sys`, where a process sees it.
fn sysfs(mountinfo: &str) -> String {
    let line = mountinfo.lines().find(|line| line.contains(" /sys ")).expect("sysfs");
    line.rsplit(' ').next().unwrap().split(',').next().unwrap().to_owned()
}

fn sysfs_is_read_only_but_never_the_hosts(node: &Node) {
    let hosts = || sysfs(&std::fs::read_to_string("/proc/self/mountinfo").unwrap());
    let before = hosts();
    let own_network = |spec: &mut Value| {
        spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({ "type": "network" }));
    };
    let (_, own) = node.container("own").script("cat /proc/self/mountinfo").edit(own_network).run().unwrap();
    assert_eq!(sysfs(&own.stdout()), "ro");
    let (_, shared) = node.container("shared").script("cat /proc/self/mountinfo").run().unwrap();
    assert_eq!([sysfs(&shared.stdout()), hosts()], [before.clone(), before]);
}

fn a_device_directory_of_the_hosts_gets_no_devices(node: &Node) {
    let directory = node.directory().join("devices");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("of-the-host"), "").unwrap();
    mount(Some("/dev/null"), &file(&directory, "null"), None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let of_host = bind("/dev", &directory, &["rbind", "rw"]);
    let edit = move |spec: &mut Value| {
        spec["mounts"]
            .as_array_mut()
            .unwrap()
            .retain(|mount| !mount["destination"].as_str().unwrap().starts_with("/dev"));
        push(spec, of_host);
    };
    let ran = node.container("a").script("ls /dev; grep -c ' /dev ' /proc/self/mountinfo").edit(edit).run();
    umount2(&directory.join("null"), MntFlags::MNT_DETACH).unwrap();
    let (code, output) = ran.unwrap();
    assert_eq!((code, output.stdout()), (0, "null\nof-the-host\n1\n".to_owned()), "{}", output.stderr());
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 2);
}

fn file(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, "").unwrap();
    path
}

fn read_only_file_systems_have_mounts_in_them(node: &Node) {
    let secret = file(node.directory(), "secret");
    std::fs::write(&secret, "secret").unwrap();
    let edit = move |spec: &mut Value| {
        push(spec, json!({ "destination": "/ro", "type": "tmpfs", "source": "tmpfs", "options": ["ro"] }));
        push(spec, bind("/ro/deep/secret", &secret, &["bind", "ro"]));
        spec["process"]["cwd"] = json!("/ro/made/for/it");
    };
    let script = "cat /ro/deep/secret; pwd; touch /ro/file 2>/dev/null || echo refused";
    let (_, output) = node.container("a").script(script).edit(edit).run().unwrap();
    assert_eq!(output.stdout(), "secret/ro/made/for/it\nrefused\n");
}

fn read_only_devices_and_a_terminal(node: &Node) {
    let edit = |spec: &mut Value| spec["mounts"][1]["options"].as_array_mut().unwrap().push(json!("ro"));
    let script = "[ -c /dev/console ] && echo console; touch /dev/file 2>/dev/null || echo refused; echo x > /dev/null && echo end";
    for terminal in [false, true] {
        let builder = node.container("a").script(script).edit(edit);
        let (_, output) = if terminal { builder.terminal() } else { builder }.run().unwrap();
        let wanted = if terminal { "console\nrefused\nend\n" } else { "refused\nend\n" };
        assert_eq!(output.stdout().replace('\r', ""), wanted);
    }
}

fn read_only_paths_execute(node: &Node) {
    let edit = |spec: &mut Value| spec["linux"]["readonlyPaths"].as_array_mut().unwrap().push(json!("/bin"));
    let (code, output) = node.container("a").script("touch /bin/x 2>/dev/null || ls /bin/sh").edit(edit).run().unwrap();
    assert_eq!((code, output.stdout()), (0, "/bin/sh\n".to_owned()), "{}", output.stderr());
}

fn a_link_of_the_images_leads_nowhere_in_procfs(node: &Node) {
    let image = node.directory().join("linked");
    integration::rootfs::populate(&image);
    std::os::unix::fs::symlink("/proc/sys", image.join("data")).unwrap();
    let volume = node.directory().join("volume");
    std::fs::create_dir_all(&volume).unwrap();
    for mount in
        [bind("/data", &volume, &["bind"]), json!({ "destination": "/data", "type": "tmpfs", "source": "tmpfs" })]
    {
        let created = node.container("a").rootfs(&image).edit(move |spec: &mut Value| push(spec, mount)).create();
        let Err(refusal) = created else { panic!("it was created") };
        assert!(refusal.message().contains("proc"), "{refusal}");
    }
}

/// libcontainer makes its links at that path with the host's `/`.
fn a_link_at_dev(node: &Node) {
    let victim = node.directory().join("victim");
    std::fs::create_dir_all(&victim).unwrap();
    file(&victim, "ptmx");
    let image = node.directory().join("linked-dev");
    integration::rootfs::populate(&image);
    std::fs::create_dir_all(image.join(victim.strip_prefix("/").unwrap())).unwrap();
    let _ = std::fs::remove_dir_all(image.join("dev"));
    std::os::unix::fs::symlink(&victim, image.join("dev")).unwrap();
    let Err(refusal) = node.container("a").rootfs(&image).create() else { panic!("it was created") };
    assert!(refusal.message().contains("/dev in the root file system is no directory"), "{refusal}");
    let left: Vec<_> = std::fs::read_dir(&victim).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["ptmx"]);
    assert!(victim.join("ptmx").symlink_metadata().unwrap().is_file());
}

/// As `/etc/resolv.conf` is one in images made of whole systems.
fn links_to_what_is_missing(node: &Node) {
    let image = node.directory().join("dangling");
    integration::rootfs::populate(&image);
    std::fs::create_dir_all(image.join("etc")).unwrap();
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, image.join(at)).unwrap();
    link("../gone/resolve/stub.conf", "etc/resolv.conf");
    link("/gone/run", "run-link");
    // The kernel finds nothing there, but as text it leads to what there is.
    link("nowhere/../srv", "srv-link");
    std::fs::create_dir_all(image.join("srv")).unwrap();
    let volume = node.directory().join("content");
    std::fs::create_dir_all(&volume).unwrap();
    let source = file(&volume, "file");
    std::fs::write(&source, "content").unwrap();
    let mounts = [
        bind("/etc/resolv.conf", &source, &["bind"]),
        bind("/run-link/../run-link/secrets/", &volume, &["bind"]),
        bind("/srv-link", &volume, &["bind"]),
    ];
    let edit = move |spec: &mut Value| mounts.into_iter().for_each(|mount| push(spec, mount));
    let script = "cat /gone/resolve/stub.conf /gone/run/secrets/file /srv/file";
    let (status, output) = node.container("a").rootfs(&image).script(script).edit(edit).run().unwrap();
    assert_eq!((status, output.stdout().as_str()), (0, "contentcontentcontent"), "{}", output.stderr());
}

/// `/dev` is recognized in all its spellings, and a file's destination may end with a slash.
fn destinations_are_cleaned(node: &Node) {
    let source = file(node.directory(), "app.conf");
    std::fs::write(&source, "content").unwrap();
    let edit = move |spec: &mut Value| {
        let dev = &mut spec["mounts"][1]["destination"];
        assert_eq!(*dev, "/dev");
        *dev = json!("/../dev/");
        push(spec, bind("/etc/./app.conf/", &source, &["bind", "ro"]));
    };
    let script = "cat /etc/app.conf; [ -c /dev/null ] && echo ' and devices'";
    let (status, output) = node.container("a").script(script).edit(edit).run().unwrap();
    assert_eq!((status, output.stdout().as_str()), (0, "content and devices\n"), "{}", output.stderr());
}

/// The directories of devices get a mode of their own; a volume that is mounted over one of them is
/// the host's.
fn a_volume_behind_a_link_to_dev(node: &Node) {
    let image = node.directory().join("link-to-dev");
    integration::rootfs::populate(&image);
    std::os::unix::fs::symlink("/dev", image.join("x")).unwrap();
    let volume = node.directory().join("infiniband");
    std::fs::create_dir_all(&volume).unwrap();
    file(&volume, "of-the-host");
    std::fs::set_permissions(&volume, std::fs::Permissions::from_mode(0o711)).unwrap();
    let mounted = bind("/x/infiniband", &volume, &["rbind", "rw"]);
    let edit = move |spec: &mut Value| {
        push(spec, mounted);
        let device = json!({ "path": "/dev/infiniband/null", "type": "c", "major": 1, "minor": 3, "fileMode": 438 });
        spec["linux"]["devices"] = json!([device]);
    };
    let (status, output) = node.container("a").rootfs(&image).script("ls /dev/infiniband").edit(edit).run().unwrap();
    assert_eq!((status, output.stdout().as_str()), (0, "of-the-host\n"), "{}", output.stderr());
    assert_eq!(volume.metadata().unwrap().permissions().mode() & 0o7777, 0o711);
}

fn tmpfs_maps_ids() -> Skip {
    let release = nix::sys::utsname::uname().unwrap().release().to_string_lossy().into_owned();
    let number = |at: usize| release.split(['.', '-']).nth(at).and_then(|part| part.parse::<u32>().ok()).unwrap_or(0);
    if (number(0), number(1)) >= (6, 3) { Ok(()) } else { Err("tmpfs maps ids from Linux 6.3 on".to_owned()) }
}

/// By a mapping of the mount's own, the container's, and one that reaches a mount below, too.
fn ids_are_mapped(node: &Node) {
    node.open_to_all();
    let volume = node.directory().join("mapped");
    std::fs::create_dir_all(&volume).unwrap();
    for (directory, owner) in [(volume.clone(), 0), (volume.join("below"), 7)] {
        std::fs::create_dir_all(&directory).unwrap();
        mount(Some("test"), &directory, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        std::os::unix::fs::chown(file(&directory, "file"), Some(owner), Some(owner + 1)).unwrap();
    }
    let maps = |host: u32| json!([{ "containerID": 0, "hostID": host, "size": 1000 }]);
    let with = |options: &[&str], host: Option<u32>| {
        let mut mount = bind("/tmp/mapped", &volume, options);
        for name in ["uidMappings", "gidMappings"].iter().filter(|_| host.is_some()) {
            mount[name] = maps(host.unwrap());
        }
        mount
    };
    let seen = |mount: Value, users: bool| {
        let edit = move |spec: &mut Value| {
            push(spec, mount);
            if users {
                in_user_namespace(spec);
            }
        };
        let script = "stat -c %u:%g /tmp/mapped/file /tmp/mapped/below/file";
        let (code, output) = node.container("a").script(script).edit(edit).run().unwrap();
        assert_eq!(code, 0, "{}", output.stderr());
        output.stdout()
    };
    assert_eq!(seen(with(&["rbind"], Some(5000)), false), "5000:5001\n7:8\n");
    assert_eq!(seen(with(&["rbind", "ridmap"], Some(5000)), false), "5000:5001\n5007:5008\n");
    assert_eq!(seen(with(&["rbind", "ridmap"], None), true), "0:1\n7:8\n");
    assert_eq!(seen(with(&["rbind", "ridmap"], Some(100_000)), true), "0:1\n7:8\n");
    assert_eq!(seen(with(&["rbind"], None), true), "65534:65534\n65534:65534\n");
    for directory in [volume.join("below"), volume] {
        umount2(&directory, MntFlags::MNT_DETACH).unwrap();
    }
}

fn ids_that_cannot_be_mapped_are_refused(node: &Node) {
    let refused = |mount: Value| {
        let created = node.container("a").edit(move |spec: &mut Value| push(spec, mount)).create();
        let Err(refusal) = created else { panic!("it was created") };
        refusal.message().to_owned()
    };
    let proc = refused(json!({
        "destination": "/tmp/mapped", "type": "bind", "source": "/proc", "options": ["bind"],
        "uidMappings": [{ "containerID": 0, "hostID": 1, "size": 1 }],
        "gidMappings": [{ "containerID": 0, "hostID": 1, "size": 1 }],
    }));
    assert!(proc.contains("cannot map the ids of /proc, which is to be mounted at /tmp/mapped"), "{proc}");
    let none = refused(bind("/tmp/mapped", node.directory(), &["bind", "idmap"]));
    assert!(none.contains("the id-mapped mount at /tmp/mapped needs both uidMappings and gidMappings"), "{none}");
}

/// Root inside is uid 100000 outside.
fn in_user_namespace(spec: &mut Value) {
    spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({ "type": "user" }));
    for name in ["uidMappings", "gidMappings"] {
        spec["linux"][name] = json!([{ "containerID": 0, "hostID": 100_000, "size": 65536 }]);
    }
    // Only a network namespace of its own has a sysfs of its own.
    spec["linux"]["namespaces"].as_array_mut().unwrap().push(json!({ "type": "network" }));
}

fn user_namespaces_get_what_their_root_cannot_reach(node: &Node) {
    node.open_to_all();
    let closed = node.directory().join("closed");
    std::fs::create_dir_all(closed.join("volume")).unwrap();
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(closed.join("volume/file"), "reached\n").unwrap();
    let edit = move |spec: &mut Value| {
        push(spec, bind("/tmp/volume", &closed.join("volume"), &["rbind", "rprivate", "ro"]));
        push(spec, bind("/tmp/file", &closed.join("volume/file"), &["bind", "ro", "nosuid"]));
        in_user_namespace(spec);
    };
    let (code, output) = node
        .container("a")
        .script("cat /tmp/volume/file /tmp/file; cat /proc/self/uid_map | tr -s ' '")
        .edit(edit)
        .run()
        .unwrap();
    assert_eq!((code, output.stdout()), (0, "reached\nreached\n 0 100000 65536\n".to_owned()), "{}", output.stderr());
}
