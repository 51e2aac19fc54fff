//! Notes and sockets of shims that were killed.

use std::{os::unix::net::UnixListener, time::Instant};

use super::*;
use crate::gpu::NotedGrant;

fn registry() -> (tempfile::TempDir, Registry) {
    let directory = tempfile::tempdir().unwrap();
    let registry = Registry::at(directory.path().join("state"));
    (directory, registry)
}

fn note(id: &str, shim: Option<ProcessInstance>) -> Note {
    Note {
        id: id.into(),
        namespace: "ns".into(),
        containerd: "/c.sock".into(),
        bundle: "/b".into(),
        shim,
        runtime_root: "/r".into(),
        cgroups_path: None,
        systemd_cgroup: false,
        cgroup: None,
        init_pid: None,
        without_gpu: None,
        grant: NotedGrant::Nothing,
        egpu_version: None,
    }
}

fn until_nobody_listens(socket: &Path) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_listened_to(socket) {
        assert!(Instant::now() < deadline, "{} is still listened to", socket.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn rewrite(registry: &Registry, socket: &Path, change: impl FnOnce(&mut ShimEntry)) {
    let path = registry.shim_path(socket);
    let mut entry: ShimEntry = read(&path).unwrap().unwrap();
    change(&mut entry);
    fs::write(&path, serde_json::to_vec(&entry).unwrap()).unwrap();
}

#[test]
fn a_lock_that_cannot_be_given_up_ends_with_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("lock");
    let test = {
        let path = path.clone();
        move || drop(lock_exclusive(open_lock(&path).unwrap(), LOCK_TIMEOUT).unwrap())
    };
    let unlock = (1, u64::from(libc::LOCK_UN.unsigned_abs()));
    if !testing::refused_calls::with(&["flock"], Some(unlock), libc::EIO, test) {
        eprintln!("skipped: a_lock_that_cannot_be_given_up_ends_with_its_file: needs root");
        return;
    }
    assert!(try_lock_exclusive(open_lock(&path).unwrap()).unwrap().is_ok());
}

#[test]
fn a_dead_shims_socket_goes_and_no_others() {
    let (directory, registry) = registry();
    let path = |name: &str| directory.path().join(name);
    let gone = ProcessInstance::gone_for_tests();
    let locked = registry.lock().unwrap();
    let listeners: Vec<UnixListener> = ["starting", "killed", "unwritten", "served", "foreign", "elsewhere"]
        .into_iter()
        .map(|name| {
            let containerd = if name == "foreign" { "/other.sock" } else { "/c.sock" };
            locked.announce(&path(name), containerd).unwrap();
            let listener = UnixListener::bind(path(name)).unwrap();
            if name != "starting" {
                let mut starter = gone.clone();
                if name == "elsewhere" {
                    starter = starter.in_another_namespace_for_tests();
                }
                rewrite(&registry, &path(name), |entry| entry.starter = starter);
            }
            listener
        })
        .collect();
    rewrite(&registry, &path("killed"), |entry| entry.shim = Some(gone.clone()));
    // Only one is still listened to: that of a shim whose `start` was killed at once.
    for (index, listener) in listeners.into_iter().enumerate() {
        if index == 3 {
            std::mem::forget(listener);
        }
    }
    // Another test may be making a process, which has this one's files open until it executes
    // its program.
    for name in ["starting", "killed", "unwritten", "foreign", "elsewhere"] {
        until_nobody_listens(&path(name));
    }
    drop(locked);
    registry.sweep("/c.sock").unwrap();
    let locked = registry.lock().unwrap();
    let mut left: Vec<String> = fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "state")
        .collect();
    left.sort();
    assert_eq!(left, ["elsewhere", "foreign", "served", "starting"]);
    assert_eq!(entries(&registry.shims()).count(), 4);
    locked.adopt(&path("served"), "/c.sock").unwrap();
    locked.retire(&path("served"));
    assert!(!path("served").exists());
    assert_eq!(entries(&registry.shims()).count(), 3);
    locked.adopt(&path("served"), "/c.sock").unwrap();
    assert_eq!(entries(&registry.shims()).count(), 3, "what is retired does not come back");
}

#[test]
fn one_shim_of_a_containerd_sweeps_next_until_it_begins() {
    let (_directory, registry) = registry();
    drop(registry.lock().unwrap());
    let next = registry.next_sweep("/c.sock").unwrap().unwrap();
    assert!(registry.next_sweep("/c.sock").unwrap().is_none());
    assert!(registry.next_sweep("/other.sock").unwrap().is_some());
    assert_ne!(registry.sweep_path("/c.sock", 1), registry.sweep_path("/c.sock", 2));
    let since = SystemTime::now() - 2 * NEXT_SWEEP_TIMEOUT;
    next._lock.as_ref().unwrap().set_modified(since).unwrap();
    assert!(registry.next_sweep("/c.sock").unwrap().is_some(), "who has it is stopped");
    drop(next);
    let next = registry.next_sweep("/c.sock").unwrap().unwrap();
    assert!(registry.next_sweep("/c.sock").unwrap().is_none(), "it is held, since now");
    drop(next);
}

#[test]
fn notes_are_kept_until_forgotten() {
    let (_directory, registry) = registry();
    assert!(registry.claim("/c.sock", "ns", "a").unwrap().is_none());
    let (lives, dead, untold) =
        (ProcessInstance::current().unwrap(), ProcessInstance::gone_for_tests(), note("c", None));
    for note in [note("a", Some(lives)), note("b", Some(dead.clone())), untold] {
        registry.save_note(&note).unwrap();
    }
    let other = Note { containerd: "/other.sock".into(), ..note("d", Some(dead)) };
    registry.save_note(&other).unwrap();
    let abandoned: Vec<String> = registry.abandoned("/c.sock").into_iter().map(|note| note.id).collect();
    assert_eq!(abandoned, ["b"], "not those of a living shim, of an unknown one, or of another containerd");
    let claim = registry.claim("/c.sock", "ns", "b").unwrap().unwrap();
    assert_eq!(claim.note.as_ref().unwrap().id, "b");
    registry.remove_note("/c.sock", "ns", "b");
    drop(claim);
    assert!(registry.claim("/c.sock", "ns", "b").unwrap().is_none());
    assert_eq!(entries(&registry.containers()).count(), 3);
}

#[test]
fn a_note_that_cannot_be_read_is_named_and_can_be_claimed() {
    let (_directory, registry) = registry();
    let dead = ProcessInstance::gone_for_tests();
    for id in ["a", "b"] {
        registry.save_note(&note(id, Some(dead.clone()))).unwrap();
    }
    let damaged = registry.note_path("/c.sock", "ns", "a");
    fs::write(&damaged, "{").unwrap();
    assert!(registry.claim("/c.sock", "ns", "a").unwrap().unwrap().note.is_err());
    assert_eq!(registry.abandoned("/c.sock").len(), 1);
    let [unreadable] = registry.unreadable().try_into().unwrap();
    assert_eq!((unreadable.action, unreadable.path), ("read", damaged));
}

#[test]
fn shims_of_every_version_are_read() {
    let text = testing::fixture(env!("CARGO_MANIFEST_DIR"), "shim-1.json");
    let entry: ShimEntry = serde_json::from_slice(&text).unwrap();
    assert!(entry.socket.starts_with("/run/containerd/s") && entry.shim.is_some());
    testing::is_fixture(env!("CARGO_MANIFEST_DIR"), "shim-1.json", &serde_json::to_vec(&entry).unwrap());
}

#[test]
fn names_tell_containers_apart() {
    assert_ne!(name(&["a", "bc"]), name(&["ab", "c"]));
    assert_eq!(name(&["a", "bc"]), name(&["a", "bc"]));
}

#[test]
fn a_full_or_forbidden_directory_is_an_error_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Registry::at(file.join("state")).lock().unwrap_err();
    assert!(error.to_string().contains("file/state"), "{error}");
}
