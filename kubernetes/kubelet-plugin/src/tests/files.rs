//! CDI files are as the ledger says, whatever becomes of them.

use std::{fs, path::PathBuf, time::Duration};

use super::{
    bench::{Bench, GIB, uid},
    kubelet::{prepare, unprepare},
};

fn file(bench: &Bench, number: u32) -> PathBuf {
    bench.path(&format!("cdi/egpu.io-claim-{}.json", uid(number)))
}

async fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..200 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} has not come to be");
}

#[tokio::test]
async fn a_file_that_is_lost_or_spoilt_is_made_anew() {
    let bench = Bench::new().await;
    let claim = bench.share(1, "gpu-0", GIB, Some(10));
    prepare(&bench.socket(), &claim).await;
    let written = fs::read(file(&bench, 1)).unwrap();
    let is_whole = || fs::read(file(&bench, 1)).is_ok_and(|now| now == written);
    fs::remove_file(file(&bench, 1)).unwrap();
    wait_for("the lost file", is_whole).await;
    let spoilt = bench.path("cdi/new");
    fs::write(&spoilt, "{}").unwrap();
    fs::rename(&spoilt, file(&bench, 1)).unwrap();
    wait_for("the spoilt file", is_whole).await;
    fs::remove_dir_all(bench.path("cdi")).unwrap();
    wait_for("the lost directory", is_whole).await;
    fs::remove_file(file(&bench, 1)).unwrap();
    wait_for("a file of the new directory", is_whole).await;
}

#[tokio::test]
async fn a_restart_makes_files_anew_and_removes_those_without_a_claim() {
    let mut bench = Bench::new().await;
    let claims = [bench.share(1, "gpu-0", GIB, Some(10)), bench.share(2, "gpu-1", GIB, Some(10))];
    for claim in &claims {
        prepare(&bench.socket(), claim).await;
    }
    bench.stop().await;
    fs::remove_file(file(&bench, 1)).unwrap();
    fs::write(file(&bench, 3), "{}").unwrap();
    fs::write(bench.path("cdi/nvidia.com-gpu.json"), "{}").unwrap();
    bench.start();
    wait_for("the registration", || bench.options.registration_socket().exists()).await;
    assert!(file(&bench, 1).exists() && file(&bench, 2).exists(), "before the kubelet is told");
    assert!(!file(&bench, 3).exists() && bench.path("cdi/nvidia.com-gpu.json").exists());
    let answer = prepare(&bench.socket(), &claims[0]).await;
    assert_eq!(answer.error, "", "from the ledger");
    for claim in &claims {
        assert_eq!(unprepare(&bench.socket(), claim).await, "");
    }
    assert!(!file(&bench, 1).exists() && !file(&bench, 2).exists());
}
