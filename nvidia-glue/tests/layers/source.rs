//! A text scan of one crate's modules: which top-level module names which other in code that is no
//! test.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

/// Name of the root module, where it defines items of its own.
pub(crate) const ROOT: &str = "lib";

/// Edges between the top-level modules of one crate.
pub(crate) type Edges = BTreeMap<String, BTreeSet<String>>;

/// Edges between the top-level modules of the crate in `folder`. Re-exports of `lib.rs` count as
/// their module; the items that `lib.rs` defines count as the module [`ROOT`]. Of a type whose
/// methods stand in several modules, `self.method()` counts as the module of that method.
pub(crate) fn module_edges(folder: &Path) -> Edges {
    let root_file = folder.join("src/lib.rs");
    let tokens = tokens_without_tests(&fs::read_to_string(&root_file).unwrap());
    let root = Root::of(&tokens);
    let mut edges = Edges::new();
    edges.insert(ROOT.to_owned(), root.used_by_its_items(&tokens));
    let mut methods = Methods::default();
    for module in &root.modules {
        let mut used = BTreeSet::new();
        let file = module_file(&folder.join("src"), module);
        collect(&file, &mut vec![module.clone()], &root, &mut used, &mut methods);
        edges.insert(module.clone(), used);
    }
    methods.add_to(&mut edges);
    edges.iter_mut().for_each(|(module, used)| _ = used.remove(module));
    edges
}

/// Names that the root module offers.
struct Root {
    modules: BTreeSet<String>,
    /// By name: the module that it is imported or re-exported from.
    imports: BTreeMap<String, String>,
    /// Items that `lib.rs` itself defines.
    items: BTreeSet<String>,
}

impl Root {
    fn of(tokens: &[String]) -> Self {
        let mut root = Self { modules: BTreeSet::new(), imports: BTreeMap::new(), items: BTreeSet::new() };
        let mut depth = 0;
        for (at, token) in tokens.iter().enumerate() {
            let next = |steps: usize| tokens.get(at + steps).map(String::as_str).unwrap_or_default();
            match token.as_str() {
                "{" => depth += 1,
                "}" => depth -= 1,
                "mod" if depth == 0 && next(2) == ";" => _ = root.modules.insert(next(1).to_owned()),
                "struct" | "enum" | "union" | "fn" | "const" | "static" | "trait" | "type" | "mod" if depth == 0 => {
                    root.items.insert(next(1).to_owned());
                }
                "macro_rules" if depth == 0 => _ = root.items.insert(next(2).to_owned()),
                _ => {}
            }
        }
        for path in use_paths(tokens) {
            let path: Vec<&String> = path.iter().filter(|part| !["crate", "self"].contains(&part.as_str())).collect();
            if let [module, .., name] = path[..]
                && root.modules.contains(module)
            {
                root.imports.insert(name.clone(), module.clone());
            }
        }
        root
    }

    /// The top-level module in which `name`, a name of the root module, is defined; none for
    /// another crate's.
    fn module_of(&self, name: &str) -> Option<String> {
        if self.modules.contains(name) {
            return Some(name.to_owned());
        }
        self.imports.get(name).cloned().or_else(|| self.items.contains(name).then(|| ROOT.to_owned()))
    }

    /// The modules that the items of `lib.rs` name. Imports alone are no use.
    fn used_by_its_items(&self, tokens: &[String]) -> BTreeSet<String> {
        let mut used = BTreeSet::new();
        let mut in_use = false;
        for (at, token) in tokens.iter().enumerate() {
            let before = at.checked_sub(1).map_or("", |at| tokens[at].as_str());
            let after = tokens.get(at + 1).map_or("", String::as_str);
            match token.as_str() {
                "use" => in_use = true,
                ";" => in_use = false,
                _ if in_use || before == "." || before == "mod" || after == ":" => {}
                name if self.modules.contains(name) && after != "::" => {}
                name if self.items.contains(name) => {}
                name => used.extend(self.module_of(name)),
            }
        }
        used
    }
}

/// Methods of the crate's types, by type and name.
#[derive(Default)]
struct Methods {
    /// With the top-level module that defines each.
    defined: BTreeMap<(String, String), String>,
    /// Those that are called on `self`, each with the calling top-level module.
    called: BTreeSet<((String, String), String)>,
}

impl Methods {
    /// Adds those of the `impl` blocks of a file.
    fn collect(&mut self, tokens: &[String], module: &str) {
        for at in (0..tokens.len()).filter(|at| tokens[*at] == "impl" && tokens[at + 2] == "{") {
            let block = &tokens[at + 3..closing(tokens, at + 2)];
            let method = |name: &String| (tokens[at + 1].clone(), name.clone());
            for window in block.windows(4) {
                match [0, 1, 2, 3].map(|at| window[at].as_str()) {
                    ["fn", _, "(" | "<", _] => _ = self.defined.insert(method(&window[1]), module.to_owned()),
                    ["self", ".", _, "("] => _ = self.called.insert((method(&window[2]), module.to_owned())),
                    _ => {}
                }
            }
        }
    }

    fn add_to(&self, edges: &mut Edges) {
        for (method, caller) in &self.called {
            if let Some(definer) = self.defined.get(method) {
                edges.get_mut(caller).unwrap().insert(definer.clone());
            }
        }
    }
}

/// Adds the top-level modules that `file` and its submodules name. `path` is the file's module
/// path.
fn collect(file: &Path, path: &mut Vec<String>, root: &Root, used: &mut BTreeSet<String>, methods: &mut Methods) {
    let tokens = tokens_without_tests(&fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display())));
    methods.collect(&tokens, &path[0]);
    // Brace depth at which each inline module ends.
    let mut inline = Vec::new();
    let mut depth = 0;
    for at in 0..tokens.len() {
        let token = |steps: usize| tokens.get(at + steps).map(String::as_str).unwrap_or_default();
        match token(0) {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.pop_if(|end| *end == depth);
            }
            "mod" if token(2) == "{" => inline.push(depth),
            "mod" if token(2) == ";" => {
                let folder = submodule_folder(file);
                path.push(token(1).to_owned());
                collect(&module_file(&folder, token(1)), path, root, used, methods);
                path.pop();
            }
            "crate" | "super" if token(1) == "::" && (at == 0 || tokens[at - 1] != "::") => {
                let supers = tokens[at..].iter().step_by(2).take_while(|token| *token == "super").count();
                if supers == 0 || supers == path.len() + inline.len() {
                    let names = first_names(&tokens[at + 2 * supers.max(1)..]);
                    assert!(!names.contains(&"*".to_owned()), "{}: a glob of the root module", file.display());
                    used.extend(names.iter().filter_map(|name| root.module_of(name)));
                }
            }
            _ => {}
        }
    }
}

/// The first names of a path or of a group of paths.
fn first_names(tokens: &[String]) -> Vec<String> {
    if tokens[0] != "{" {
        return vec![tokens[0].clone()];
    }
    let mut names = Vec::new();
    let mut depth = 0;
    for pair in tokens.windows(2) {
        match pair[0].as_str() {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ => {}
        }
        match depth {
            0 => break,
            1 if ["{", ","].contains(&pair[0].as_str()) && pair[1] != "}" => names.push(pair[1].clone()),
            _ => {}
        }
    }
    names
}

/// Every path of every `use` of a file, its groups taken apart; the last part is the name that it
/// gets here.
fn use_paths(tokens: &[String]) -> Vec<Vec<String>> {
    let mut paths = Vec::new();
    for (at, _) in tokens.iter().enumerate().filter(|(_, token)| *token == "use") {
        let mut groups: Vec<usize> = Vec::new();
        let mut path: Vec<String> = Vec::new();
        for token in &tokens[at + 1..] {
            match token.as_str() {
                "::" | "as" => {}
                "{" => groups.push(path.len()),
                "," | "}" | ";" => {
                    let prefix = groups.last().copied().unwrap_or_default();
                    if path.len() > prefix {
                        paths.push(path.clone());
                    }
                    path.truncate(prefix);
                    match token.as_str() {
                        "}" => {
                            groups.pop();
                            path.truncate(groups.last().copied().unwrap_or_default());
                        }
                        ";" => break,
                        _ => {}
                    }
                }
                name => path.push(name.to_owned()),
            }
        }
    }
    paths
}

fn submodule_folder(file: &Path) -> PathBuf {
    if file.ends_with("mod.rs") { file.parent().unwrap().to_owned() } else { file.with_extension("") }
}

fn module_file(folder: &Path, module: &str) -> PathBuf {
    let file = folder.join(module).with_extension("rs");
    if file.exists() { file } else { folder.join(module).join("mod.rs") }
}

/// Names and punctuation of a source text without its comments, literals, and items for tests.
fn tokens_without_tests(text: &str) -> Vec<String> {
    let all = tokens(text);
    let mut kept = Vec::new();
    let mut at = 0;
    while at < all.len() {
        let attribute = all[at] == "#" && all.get(at + 1).is_some_and(|token| token == "[");
        if !attribute {
            kept.push(all[at].clone());
            at += 1;
            continue;
        }
        let end = closing(&all, at + 1);
        let of_test = all[at + 2] == "cfg" && all[at..end].iter().any(|token| token == "test");
        let of_others = all[at..end].iter().any(|token| token == "not");
        at = end + 1;
        if of_test && !of_others {
            at = item_end(&all, at) + 1;
        }
    }
    kept
}

/// The last token of the item that begins at `at`.
fn item_end(tokens: &[String], mut at: usize) -> usize {
    loop {
        match tokens[at].as_str() {
            ";" | "," => return at,
            "{" => return closing(tokens, at),
            "(" | "[" => at = closing(tokens, at) + 1,
            _ => at += 1,
        }
    }
}

/// The bracket that closes the one at `open`.
fn closing(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("a bracket is not closed");
}

/// Names and punctuation of a source text without its comments and literals.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").unwrap() + 2
        } else if let Some(length) = literal(rest) {
            length
        } else if first.is_alphanumeric() || first == '_' {
            let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else {
            let length = if rest.starts_with("::") { 2 } else { first.len_utf8() };
            if !first.is_whitespace() {
                tokens.push(rest[..length].to_owned());
            }
            length
        };
        rest = &rest[length..];
    }
    tokens
}

/// Length of the string or character literal that `text` begins with; a lifetime counts as its
/// quote alone.
fn literal(text: &str) -> Option<usize> {
    let raw = text.strip_prefix('b').unwrap_or(text).strip_prefix('r');
    if let Some(raw) = raw {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        if raw[hashes..].starts_with('"') {
            let end = format!("\"{}", "#".repeat(hashes));
            let prefix = text.len() - raw.len() + hashes + 1;
            return Some(prefix + raw[hashes + 1..].find(&end).unwrap() + end.len());
        }
    }
    let plain = text.strip_prefix(['b', 'c']).filter(|rest| rest.starts_with(['"', '\''])).unwrap_or(text);
    let prefix = text.len() - plain.len();
    let quote = plain.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    let mut characters = plain.char_indices().skip(1);
    if quote == '\'' && !plain[1..].starts_with('\\') && plain.chars().nth(2) != Some('\'') {
        return Some(prefix + 1);
    }
    while let Some((at, character)) = characters.next() {
        if character == '\\' {
            characters.next();
        } else if character == quote {
            return Some(prefix + at + 1);
        }
    }
    panic!("a literal is not closed: {:.60}", text);
}
