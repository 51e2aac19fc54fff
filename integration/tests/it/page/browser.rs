//! A browser without a window: Chromium, driven by its DevTools protocol through pipes.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde_json::{Value, json};

const PROGRAM: &str = "chromium";
/// Ask for nothing from anywhere, and leave nothing behind.
const OPTIONS: &[&str] = &[
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-breakpad",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--remote-debugging-pipe",
    "--window-size=1280,1400",
];

/// Returns the reason for which there is no browser.
pub(super) fn available() -> Result<(), String> {
    let found = std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|folder| folder.join(PROGRAM).is_file()));
    if found { Ok(()) } else { Err(format!("{PROGRAM} is missing; make page-test installs it")) }
}

/// One page in it.
pub(super) struct Browser {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    session: Value,
    sent: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    pub(super) fn open(url: &str) -> Self {
        let profile = tempfile::tempdir().expect("a folder for the browser");
        // It reads commands from descriptor 3 and answers on 4.
        let mut process = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >&2", PROGRAM])
            .args(OPTIONS)
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .env("HOME", profile.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("start the browser");
        let (commands, answers) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        let mut browser = Self { process, commands, answers, session: Value::Null, sent: 0, _profile: profile };
        let target = browser.call("Target.createTarget", &json!({"url": url}))["targetId"].take();
        let attached = browser.call("Target.attachToTarget", &json!({"targetId": target, "flatten": true}));
        browser.session = attached["sessionId"].clone();
        browser
    }

    /// Calls a method of the protocol, and returns its result.
    fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": parameters});
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.commands.write_all(format!("{message}\0").as_bytes()).expect("the browser listens");
        loop {
            let mut answer = Vec::new();
            self.answers.read_until(0, &mut answer).expect("the browser answers");
            let end = answer.pop();
            assert_eq!(end, Some(0), "the browser has ended");
            let mut answer: Value = serde_json::from_slice(&answer).expect("JSON");
            // Others are events.
            if answer["id"] == self.sent {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    /// Evaluates an expression of JavaScript in the page.
    pub(super) fn value(&mut self, expression: &str) -> Value {
        let mut result = self.call("Runtime.evaluate", &json!({"expression": expression, "returnByValue": true}));
        assert!(result.get("exceptionDetails").is_none(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Writes a picture of all of the page, as PNG.
    pub(super) fn picture(&mut self, path: &Path) {
        let taken = self.call("Page.captureScreenshot", &json!({"format": "png", "captureBeyondViewport": false}));
        let picture = STANDARD.decode(taken["data"].as_str().expect("a picture")).expect("base64");
        fs::write(path, picture).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its own group: the browser and all that it has started.
        let _ = killpg(Pid::from_raw(self.process.id().cast_signed()), Signal::SIGKILL);
        let _ = self.process.wait();
    }
}
