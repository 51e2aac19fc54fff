//! `egpu metrics --listen ... --page` shows the node to a browser.

mod browser;

use std::{path::PathBuf, time::Instant};

use integration::{Container, ContainerBuilder, Node, eventually};
use serde_json::Value;

use self::browser::Browser;
use crate::{attacks::rm_client, case::Case, metrics::Server};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case::egpu("page::is_served_with_what_the_commands_say", served).once(),
        Case::egpu("page::in_a_browser", in_a_browser).needing(browser::available).also_needing(rm_client).once(),
    ]
}

/// File in which the test leaves a picture of the page.
const PICTURE: &str = "EGPU_TEST_PAGE_PICTURE";
/// A name as bad as one can be: markup, an end of a script, escapes, another direction of writing,
/// and length.
const HOSTILE: &str =
    "<img src=x onerror=document.title='hacked'></script><script>document.title='hacked'</script>\u{1b}[2J\u{202e}";

fn share<'node>(node: &'node Node, id: &str, memory: &str, compute: &str) -> ContainerBuilder<'node> {
    node.container(id).envs(&[("EGPU_DEVICES", "0"), ("EGPU_MEMORY", memory), ("EGPU_COMPUTE", compute)])
}

fn of_pod<'node>(container: ContainerBuilder<'node>, pod: &str, name: &str) -> ContainerBuilder<'node> {
    let container = container.annotation("io.kubernetes.cri.container-type", "container");
    let container = container.annotation("io.kubernetes.cri.sandbox-namespace", "team");
    container.annotation("io.kubernetes.cri.sandbox-name", pod).annotation("io.kubernetes.cri.container-name", name)
}

fn served(node: &Node) {
    let container = of_pod(share(node, "a", "4GiB", "25%"), "train-0", HOSTILE).start().unwrap();
    let server = Server::start(node, &["metrics", "--listen", "127.0.0.1:0", "--page"]);
    let (head, page) = server.ask_for("GET", "/");
    assert!(
        head.starts_with("HTTP/1.1 200 OK\r\n") && head.contains("content-security-policy: default-src 'none'"),
        "{head}"
    );
    assert!(page.contains("<title>egpu</title>"), "{page}");
    let (head, data) = server.ask_for("GET", "/data.json");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(!data.contains(['\u{1b}', '\u{202e}']), "{data}");
    let data: Value = serde_json::from_str(&data).unwrap();
    assert_eq!(data["cards"], node.egpu_json(&["cards"]));
    let commands = [("containers", node.egpu_json(&["ps"])), ("events", node.egpu_json(&["events"]))];
    for (part, printed) in &commands {
        assert_eq!(data[part][0]["pod"], printed[0]["pod"], "{part}");
    }
    assert_eq!(data["containers"][0]["pod"]["container"], HOSTILE);
    assert_eq!(data["top"]["containers"][0]["id"], "a");
    server.end();
    container.end();
}

/// Containers whose bars are long: memory, and work for as long as they may.
fn three<'node>(node: &'node Node, last: &str) -> [Container<'node>; 3] {
    [("train-0", "main", "12GiB", "50%", "8G"), ("train-1", "main", "6GiB", "30%", "5G"), ("notebook", last, "2GiB", "10%", "512M")]
        .map(|(id, name, memory, compute, held)| {
            let spin = ["rm-client", "spin", "600", "--every", "100ms"];
            let container = of_pod(share(node, id, memory, compute), id, name).args(&spin).start().unwrap();
            container.stdio.value("working");
            let hold = format!("rm-client alloc {held} --hold 1000 > /tmp/log 2>&1 < /dev/null & until grep -q holding /tmp/log; do sleep 0.1; done");
            assert_eq!(container.sh(&hold).0, 0, "{id}");
            container
        })
}

/// Widths of what the meters of the containers show, in percent.
const WIDTHS: &str = "[...document.querySelectorAll('#containers .used')].map((bar) => parseFloat(bar.style.width))";

fn in_a_browser(node: &Node) {
    let picture = std::env::var_os(PICTURE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let last = if picture.is_some() { "main" } else { HOSTILE };
    let containers = three(node, last);
    let server = Server::start(node, &["metrics", "--listen", "127.0.0.1:0", "--page"]);
    let address = server.address().to_owned();
    let mut browser = Browser::open(&format!("http://{address}/"));
    eventually("three containers with the bars of their memory and time", || {
        let widths: Vec<f64> = browser.value(WIDTHS).as_array()?.iter().filter_map(Value::as_f64).collect();
        // The second has 5 of 6 GiB.
        (widths.len() == 6 && widths.iter().all(|width| *width > 5.0) && widths[2] > 80.0).then_some(())
    });
    assert_eq!(browser.value("document.querySelectorAll('#cards article').length"), 4);
    assert_eq!(browser.value("document.querySelectorAll('#containers script, #containers img').length"), 0);
    let title = browser.value("document.title");
    assert!(title.as_str().is_some_and(|title| title.starts_with("egpu on ")), "{title}");
    let hostile = browser.value("document.querySelector('#containers tr:nth-child(3) a').textContent");
    let shown = last.replace(['\u{1b}', '\u{202e}'], "?");
    assert_eq!(hostile, format!("team/notebook/{shown}"), "its name is text");

    let text = "document.querySelector('#containers').innerText";
    let began = Instant::now();
    assert!(node.egpu(&["set", "train-0", "--memory", "16GiB"]).status.success());
    eventually("a change is shown", || browser.value(text).as_str()?.contains("of 16 GiB").then_some(()));
    println!("page::in_a_browser: a change was shown after {} ms", began.elapsed().as_millis());

    browser.value("document.querySelector('#cards article:nth-child(2) a').click()");
    let shown = "[...document.querySelectorAll('#containers tr')].filter((row) => !row.hidden).length";
    eventually("a card's link shows its containers alone", || (browser.value(shown) == 0).then_some(()));
    browser.value("document.querySelector('#filter a').click()");
    eventually("all are shown again", || (browser.value(shown) == 3).then_some(()));
    eventually("there is a plot of the last minutes", || {
        let path = browser.value("document.querySelector('#plot-list path.is').getAttribute('d')");
        path.as_str()?.contains('L').then_some(())
    });
    if let Some(path) = picture {
        std::thread::sleep(std::time::Duration::from_secs(45));
        browser.picture(&path);
    }

    server.end();
    let is_stale = "document.body.classList.contains('stale')";
    eventually("the page says that its figures are old", || (browser.value(is_stale) == true).then_some(()));
    let server = Server::start(node, &["metrics", "--listen", &address, "--page"]);
    eventually("the page goes on when the server is back", || (browser.value(is_stale) == false).then_some(()));
    assert_eq!(browser.value(shown), 3);
    server.end();
    drop(browser);
    for container in containers {
        container.end();
    }
}
