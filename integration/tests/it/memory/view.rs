//! Programs see a card of exactly their quota.

use integration::{Node, hostile::MIB};

use super::{granted, idle};
use crate::case::Case;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("memory::a_card_looks_as_big_as_the_quota", size),
        Case::egpu("memory::the_table_of_cards_is_that_of_the_quota", table)
            .needing(crate::attacks::rm_client)
            .only_simulated("four V100 of 32 GiB"),
        Case::egpu("memory::vendor_1_and_2_a_job_that_needs_more_than_its_quota", vendor)
            .only_simulated("four V100 of 32 GiB"),
    ]
}

fn size(node: &Node) {
    let container = idle(node, "a", 3276);
    let (code, output) = container.sh("hostile total");
    assert_eq!((code, output.value("status")), (0, 0), "{}", output.stdout());
    assert_eq!(output.value("size_kib"), 3276 << 10);
    let free = output.value("free_kib");
    assert!(free <= 3276 << 10 && free + (64 << 10) >= 3276 << 10, "{free}");
    let hog = container.exec("hog", &["hostile", "hold", "1024"]).start().unwrap();
    assert_eq!(hog.stdio.value("status"), 0);
    let (_, output) = container.sh("hostile total");
    let free = output.value("free_kib");
    assert!(free <= 2252 << 10 && free + (128 << 10) >= 2252 << 10, "{free}: a neighbour process counts");
    hog.end();
    // Another container's use is nobody's business.
    let other = granted(node, "b", 4096).hostile(&["hold", "2048"]).start().unwrap();
    assert_eq!(other.stdio.value("status"), 0);
    let (_, output) = container.sh("hostile total");
    assert!(output.value("free_kib") + (64 << 10) >= 3276 << 10, "{}", output.stdout());
    other.end();
    container.end();
}

/// As the vendor's tool shows it, and `egpu ps` beside it.
fn table(node: &Node) {
    let container = node
        .container("a")
        .armed()
        .env("EGPU", "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=1,MEM=3276,WEIGHT=10:PGPU=3,MEM=6043,WEIGHT=10")
        .env("NVIDIA_VISIBLE_DEVICES", "1,3")
        .start()
        .unwrap();
    let table = container.read("rm-client smi");
    assert!(table.contains("0MiB / 3276MiB") && table.contains("0MiB / 6043MiB"), "{table}");
    assert_eq!(table.matches("Tesla V100").count(), 2, "only the granted cards: {table}");
    let hog = container.exec("hog", &["rm-client", "alloc", "1G", "--hold", "1000"]).start().unwrap();
    hog.stdio.wait_for("holding");
    let table = container.read("rm-client smi");
    let used = table.lines().find_map(|line| line.split_once("MiB / 3276MiB")?.0.split(' ').next_back()?.parse().ok());
    assert!((1024..1100).contains(&used.unwrap_or(0)), "{table}");
    let pid = pid_in_container(hog.state().unwrap().pid);
    assert!(table.lines().any(|line| line.split_whitespace().any(|word| word == pid)), "pid {pid}: {table}");
    hog.end();
    container.end();
}

/// The last of the process's numbers, one a pid namespace.
fn pid_in_container(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("NSpid:")).unwrap();
    line.split_whitespace().next_back().unwrap().to_owned()
}

/// The vendor's acceptance tests 1 and 2: three cards of 3276 MiB, then of 8192 MiB, and a job that
/// needs 7.6 GB.
fn vendor(node: &Node) {
    for (mib, fits) in [(3276, false), (8192, true)] {
        let id = format!("job{mib}");
        let egpu = format!(
            "POLICY=0,ONLINE=0,TYPE=DOCKER:PGPU=0,MEM={mib},WEIGHT=10:PGPU=1,MEM={mib},WEIGHT=10:PGPU=2,MEM={mib},WEIGHT=10"
        );
        let container =
            node.container(&id).armed().env("EGPU", &egpu).env("NVIDIA_VISIBLE_DEVICES", "0,1,2").start().unwrap();
        let (code, output) = container.sh("hostile total");
        assert_eq!((code, output.value("size_kib")), (0, mib << 10));
        // 7.6 GB, in one piece and in many.
        let (_, output) = container.sh("hostile step 7248");
        assert_eq!(output.value("status") == 0, fits, "{}", output.stdout());
        let (_, output) = container.sh("hostile fill 64");
        assert_eq!(output.value("got").cast_unsigned() >= 7248 * MIB, fits, "{}", output.stdout());
        container.end();
    }
}
