//! Generator and check of docs/configuration.md, which shows the default file to people.
//! `EGPU_WRITE_DOCS=1 cargo test -p runtime-config configuration_md` writes it anew.

use std::fmt::Write as _;

use super::*;

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");

/// Its introduction, all that is above the first section, is written by hand.
#[test]
fn configuration_md_is_what_the_default_file_says() {
    testing::is_document(PATH, |committed| {
        let introduction = committed.split("\n## ").next().unwrap().trim_end();
        format!("{introduction}\n{}", sections())
    });
}

/// A section for each part of the file and each of its tables, with a row for each key. The example
/// of simulated cards is left to the file.
fn sections() -> String {
    let (mut text, mut table, mut comment) = (String::new(), String::new(), Vec::new());
    let head = "| key | default | accepted | what it decides |\n|---|---|---|---|";
    for line in DEFAULT_TOML.lines() {
        if let Some(part) = line.strip_prefix("# ---- ") {
            write!(text, "\n## {}\n\n{head}\n", part.trim_end_matches(" ----")).unwrap();
        } else if let Some(said) = line.strip_prefix("# ") {
            comment.push(said);
        } else if let Some((key, default)) = line.strip_prefix('#').and_then(|line| line.split_once(" = ")) {
            let accepted = markdown(&accepted(&table, key, default));
            writeln!(text, "| `{key}` | `{default}` | {accepted} | {} |", markdown(&comment.join(" "))).unwrap();
        } else if line.starts_with('[') {
            write!(text, "\n## `{line}`\n{}\n\n{head}\n", markdown(&comment.join(" "))).unwrap();
            line.clone_into(&mut table);
        }
        if !line.starts_with("# ") {
            comment.clear();
        }
    }
    text
}

/// Returns what is accepted, as the error about a wrong value of the key says it.
fn accepted(table: &str, key: &str, default: &str) -> String {
    let wrong = match default {
        "true" | "false" => return "true or false".to_owned(),
        text if text.starts_with('"') => "'?'",
        _ => "-1",
    };
    match Config::from_toml(&format!("{table}\n{key} = {wrong}"), "any") {
        Err(ConfigError::Value { accepted, .. }) => accepted,
        other => panic!("{key} = {wrong}: {other:?}"),
    }
}

/// The text with code for what is quoted, and links for what names a document.
fn markdown(text: &str) -> String {
    let quoted = text.split('"').enumerate().map(|(index, part)| match index % 2 {
        0 => part.to_owned(),
        _ => format!("`\"{part}\"`"),
    });
    let text = quoted.collect::<String>().replace('*', "\\*").replace('|', "\\|");
    let mut parts = text.split("docs/");
    let mut linked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (place, rest) = part.split_at(part.find(')').expect("a document is named in parentheses"));
        let (_, anchor) = place.split_once('#').expect("a document is named with an anchor");
        write!(linked, "[{}]({place}){rest}", anchor.replace('-', " ")).unwrap();
    }
    linked
}
