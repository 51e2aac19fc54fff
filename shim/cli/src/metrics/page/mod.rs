//! Page of the node: the same as `egpu top`, for a browser, read only and complete in itself.

mod token;

use std::{collections::VecDeque, fs, sync::Mutex};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ledger::event_log;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
pub(crate) use token::Token;

use crate::{cards, error::CliError, events, node::Node, output, ps, schedules::Schedules, top, usage};

const HTML: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// The number of events that are shown.
const EVENTS: usize = 50;

/// The page, and the policy under which a browser runs nothing else and loads nothing from
/// elsewhere, whatever a name on it contains.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) html: String,
    pub(super) content_security_policy: String,
}

impl Page {
    pub(super) fn new() -> Self {
        let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
        Self {
            html: HTML.replacen("{{style}}", STYLE, 1).replacen("{{script}}", SCRIPT, 1),
            content_security_policy: format!(
                "default-src 'none'; script-src {}; style-src {}; connect-src 'self'; img-src data:; base-uri 'none'; \
                 form-action 'none'; frame-ancestors 'none'",
                hash(SCRIPT),
                hash(STYLE)
            ),
        }
    }
}

/// Data of the page: what `cards`, `ps`, `top` and `events` print as JSON.
#[derive(Debug, Serialize)]
struct PageData {
    host: String,
    version: &'static str,
    cards: Value,
    containers: Value,
    top: Value,
    events: VecDeque<Value>,
}

/// Reads the data of the page; one after another, as what is new since the last one is among it.
#[derive(Debug, Default)]
pub(super) struct PageReader {
    before: Mutex<Option<Schedules>>,
}

impl PageReader {
    pub(super) fn read(&self) -> Result<String, CliError> {
        let node = Node::read()?;
        let (usage, warnings) = usage::measure(&node);
        for warning in warnings {
            crate::output::say(&format!("egpu: {warning}"));
        }
        let directory = event_log::directory(&node.config.state_dir);
        let events = events::last(&directory, EVENTS).map_err(|source| CliError::Events { directory, source })?;
        let mut before = self.before.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let data = PageData {
            host: fs::read_to_string(HOSTNAME).unwrap_or_default().trim_end().to_owned(),
            version: egpu_shim::version::text(),
            cards: serde_json::to_value(cards::list(&node))?,
            containers: serde_json::to_value(ps::list(&node, &usage))?,
            top: serde_json::to_value(top::Frame::new(&node, &usage, before.as_ref()))?,
            events,
        };
        *before = Some(node.schedules);
        output::json_line(&data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_complete_in_itself_and_runs_nothing_else() {
        let Page { html, content_security_policy } = Page::new();
        assert!(html.contains("<style>\n:root") || html.contains("<style>:root"), "{html}");
        assert!(!html.contains("{{"), "both parts are in it");
        for outside in ["http:", "https:", "src=", "@import", "url("] {
            let links: Vec<&str> =
                html.match_indices(outside).map(|(at, _)| &html[at..(at + 40).min(html.len())]).collect();
            let are_names = links.iter().all(|link| link.starts_with("http://www.w3.org/2000/svg"));
            assert!(are_names, "{links:?}");
        }
        for unsafe_word in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "setAttribute(\"on"]
        {
            assert!(!html.contains(unsafe_word), "{unsafe_word}");
        }
        assert!(content_security_policy.starts_with("default-src 'none'; script-src 'sha256-"));
        assert!(!content_security_policy.contains("unsafe"));
    }
}
