//! The documents hold together: links resolve, commands exist, each result is listed and cited, and
//! each test that the specification and the threat model name is there.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on stops; helpers are not seen as tests"
)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Files of the repository whose name ends so, what is built or fuzzed left out.
fn files(folder: &Path, suffix: &str, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !path.is_symlink() {
            if !matches!(name.as_str(), "target" | ".git" | "corpus" | "bundle" | "out") {
                files(&path, suffix, found);
            }
        } else if name.ends_with(suffix) {
            found.push(path);
        }
    }
}

fn all(suffix: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    files(&repository(), suffix, &mut found);
    found.sort();
    found.into_iter().map(|path| (path.clone(), fs::read_to_string(&path).unwrap())).collect()
}

/// A document's lines outside its blocks of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        !code && !fence
    })
}

/// Returns the text between `open` and `close`, each time.
fn between<'text>(text: &'text str, open: &'text str, close: char) -> impl Iterator<Item = &'text str> {
    text.split(open).skip(1).filter_map(move |rest| rest.split_once(close)).map(|(inside, _)| inside)
}

/// The anchors of a document's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for heading in prose(text).filter(|line| line.starts_with('#')) {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|letter| letter.is_alphanumeric() || " -_".contains(*letter));
        let anchor: String = kept.map(|letter| if letter == ' ' { '-' } else { letter }).collect();
        let again = (1..).map(|number| format!("{anchor}-{number}")).find(|name| !all.contains(name)).unwrap();
        if !all.insert(anchor) {
            all.insert(again);
        }
    }
    all
}

/// Returns the reason for which a link of a document leads nowhere.
fn broken(document: &Path, text: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let path = document.parent().unwrap().join(file);
    if !file.is_empty() && !path.exists() {
        return Some(format!("{}: {link}: no such file", document.display()));
    }
    let there = if file.is_empty() { text.to_owned() } else { fs::read_to_string(&path).unwrap_or_default() };
    let leads = anchor.is_empty() || anchors(&there).contains(anchor);
    (!leads).then(|| format!("{}: {link}: no such heading", document.display()))
}

#[test]
fn links_resolve() {
    let mut wrong = Vec::new();
    for (path, text) in all(".md") {
        // A link may be wrapped between its words and its place.
        let prose = prose(&text).collect::<Vec<_>>().join("\n");
        wrong.extend(between(&prose, "](", ')').filter_map(|link| broken(&path, &text, link)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn make_has_each_target_that_a_document_names() {
    let makefile = fs::read_to_string(repository().join("Makefile")).unwrap();
    let names = makefile.lines().filter_map(|line| line.split_once(':')).map(|(names, _)| names);
    let rules: BTreeSet<_> = names.flat_map(|names| names.split(' ')).collect();
    for (path, text) in all(".md") {
        for command in between(&text, "`make ", '`') {
            let target = command.split([' ', '\n']).find(|word| !word.contains('=')).unwrap_or_default();
            assert!(rules.contains(target), "{}: make {target}", path.display());
        }
    }
}

#[test]
fn each_result_is_listed_and_cited() {
    let index = repository().join("docs/results/README.md");
    let (listed, others): (Vec<_>, Vec<_>) = all(".md").into_iter().partition(|(path, _)| *path == index);
    for entry in fs::read_dir(index.parent().unwrap()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name != "README.md" {
            assert!(listed[0].1.contains(&name), "docs/results/README.md has no row for {name}");
            assert!(others.iter().any(|(_, text)| text.contains(&name)), "no document cites {name}");
        }
    }
}

/// They stand in the last column of their tables.
#[test]
fn each_test_that_promises_and_defences_name_is_there() {
    let sources = all(".rs");
    for (document, at_least) in [("specification.md", 90), ("threat-model.md", 20)] {
        let text = fs::read_to_string(repository().join("docs").join(document)).unwrap();
        let rows = prose(&text).filter_map(|line| line.strip_suffix('|')).filter_map(|row| row.rsplit_once('|'));
        let tables = rows.map(|(_, last)| last).collect::<Vec<_>>().join("\n");
        let tests: Vec<_> = tables.split('`').skip(1).step_by(2).filter(|name| names_a_test(name)).collect();
        assert!(tests.len() >= at_least, "{document}: {} names were found", tests.len());
        for name in tests {
            let is_there = sources.iter().any(|(path, text)| has_test(path, text, name));
            assert!(is_there, "{document} names {name}: no such test");
        }
    }
}

/// Returns whether a file has a test: a case of the integration suite, which is named in a string,
/// one in a list of the helper's, or a function. `suite::case` is a case of that file.
fn has_test(path: &Path, text: &str, name: &str) -> bool {
    let is_in = |folder: &str| path.strip_prefix(repository()).unwrap().starts_with(folder);
    if is_in("integration/tests") {
        return text.contains(&format!("\"{name}\"")) || text.contains(&format!("::{name}\""));
    }
    if is_in("shim/runtime/tests/helper") {
        return text.contains(&format!("\n        {name},\n"));
    }
    let (suite, function) = name.rsplit_once("::").map_or((None, name), |(suite, case)| (Some(suite), case));
    suite.is_none_or(|suite| path.file_stem().unwrap() == suite) && has_test_function(text, function)
}

/// Returns whether a text has a function of this name whose attributes make it a test.
fn has_test_function(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let declares = |line: &str| line.contains(&format!("fn {name}("));
    (0..lines.len()).filter(|at| declares(lines[*at])).any(|at| {
        let mut above = lines[..at].iter().rev().take_while(|line| line.starts_with(['#', '/']));
        above.any(|line| line.starts_with("#[test]") || line.starts_with("#[tokio::test"))
    })
}

#[test]
fn a_function_alone_is_no_test() {
    let of = |name: &str, text: &str| has_test(&repository().join("shim/src/suite.rs"), text, name);
    assert!(of("a_b_c", "#[test]\n/// Says.\nfn a_b_c() {}"));
    assert!(of("suite::a_b_c", "    #[tokio::test(start_paused = true)]\n    async fn a_b_c() {}"));
    assert!(!of("other::a_b_c", "#[test]\nfn a_b_c() {}"));
    assert!(!of("a_b_c", "#[test]\nfn other() {}\nfn a_b_c() {}\n\"a_b_c\""));
    let case = |name: &str| has_test(&repository().join("integration/tests/it/gpu.rs"), "\"gpu::suite::a_b_c\"", name);
    assert!(case("gpu::suite::a_b_c") && case("suite::a_b_c") && !case("a_b"));
}

/// `suite::case`, or a sentence of small words.
fn names_a_test(name: &str) -> bool {
    let plain = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_:".contains(letter);
    let is_case = name.contains("::") && !name.ends_with("::");
    name.chars().all(plain) && (is_case || name.matches('_').count() > 1)
}
