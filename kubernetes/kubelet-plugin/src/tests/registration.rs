//! The kubelet finds the plugin.

use std::{fs, time::Duration};

use super::{
    bench::Bench,
    kubelet::{dial, frames, info},
};

const DATA: u8 = 0;
const RST_STREAM: u8 = 3;

/// Fails if a new version of h2 or http refuses what the kubelet sends, and if the socket loses its
/// `@`: those bytes name it.
#[tokio::test]
async fn the_kubelets_own_dial_is_answered() {
    let bench = Bench::new().await;
    let socket = bench.options.registration_socket();
    assert_eq!(socket.file_name().unwrap(), "egpu@gpu.egpu.io-reg.sock");
    let answered = dial(&socket).await;
    let frames = frames(&answered);
    assert!(frames.iter().all(|(kind, _)| *kind != RST_STREAM), "{answered:x?}");
    let data: Vec<&[u8]> = frames.iter().filter(|(kind, _)| *kind == DATA).map(|(_, payload)| *payload).collect();
    assert_eq!(data.len(), 2, "an answer to each call: {answered:x?}");
    let told = String::from_utf8_lossy(data[0]);
    for said in ["DRAPlugin", "gpu.egpu.io", "v1.DRAPlugin", "v1alpha1.DRAResourceHealth"] {
        assert!(told.contains(said), "{said} is missing in {told:?}");
    }
}

#[tokio::test]
async fn instances_of_two_pods_have_sockets_of_their_own() {
    let mut bench = Bench::without_plugin("", "").await;
    bench.start();
    bench.devices().await;
    let mut other = bench.options.clone();
    other.pod_uid = Some("1234".to_owned());
    assert!(other.registration_socket().ends_with("plugins_registry/egpu@gpu.egpu.io-1234-reg.sock"));
    let first = info(&bench.options.registration_socket()).await;
    assert_eq!(first.endpoint, bench.socket().display().to_string());
    assert_ne!(first.endpoint, other.endpoint().display().to_string());
}

#[tokio::test]
async fn a_socket_that_was_taken_away_comes_back() {
    let bench = Bench::new().await;
    let socket = bench.options.registration_socket();
    fs::remove_file(&socket).unwrap();
    // Whatever happens on the node is a reason to look.
    fs::write(bench.path("cdi/other"), "").unwrap();
    fs::remove_file(bench.path("cdi/other")).unwrap();
    for _ in 0..100 {
        if socket.exists() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(info(&socket).await.name, "gpu.egpu.io");
}

#[tokio::test]
async fn the_end_takes_the_sockets_away_and_leaves_the_slices() {
    let mut bench = Bench::new().await;
    bench.stop().await;
    assert!(!bench.socket().exists() && !bench.options.registration_socket().exists());
    assert_eq!(bench.devices().await.len(), 2);
}
