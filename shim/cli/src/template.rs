//! Output by a template: one line an entry, in which `{{.KEY}}` is the entry's value of a key of
//! the JSON, as Docker's `--format` has it: `{{.id}}`, `{{.cards.0.uuid}}`, `{{.cards.*.uuid}}`.
//!
//! There are no conditions and no functions: whoever needs more has `-o json` and a program for it.

use std::str::FromStr;

use serde_json::Value;

use super::output::printable;

/// A parsed template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    /// Keys of objects and indices of lists, outermost first; `*`: each element of a list.
    Path(Vec<String>),
}

/// Text that is no template.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a template is text with {{{{.KEY}}}}, {{{{.KEY.0.KEY}}}} or {{{{.KEY.*.KEY}}}} in it, where KEY is one of `-o json`"
)]
pub(super) struct ParseTemplateError;

impl FromStr for Template {
    type Err = ParseTemplateError;

    fn from_str(text: &str) -> Result<Self, ParseTemplateError> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once("{{") {
            let (path, after) = after.split_once("}}").ok_or(ParseTemplateError)?;
            let path = path.trim().strip_prefix('.').ok_or(ParseTemplateError)?;
            let keys: Vec<String> = path.split('.').map(str::to_owned).collect();
            let is_key =
                |key: &String| key == "*" || !key.is_empty() && key.chars().all(|c| c.is_alphanumeric() || c == '_');
            if !keys.iter().all(is_key) {
                return Err(ParseTemplateError);
            }
            parts.extend([Part::Text(unescaped(before)), Part::Path(keys)]);
            rest = after;
        }
        let has_path = !parts.is_empty();
        parts.push(Part::Text(unescaped(rest)));
        has_path.then_some(Self(parts)).ok_or(ParseTemplateError)
    }
}

/// A shell passes `\t` and `\n` on as they are.
fn unescaped(text: &str) -> String {
    text.replace("\\t", "\t").replace("\\n", "\n")
}

impl Template {
    /// Formats the entries, one a line.
    pub(super) fn lines(&self, value: &Value) -> String {
        match value {
            Value::Array(entries) => entries.iter().map(|entry| self.line(entry)).collect(),
            entry => self.line(entry),
        }
    }

    fn line(&self, entry: &Value) -> String {
        let part = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::Path(keys) => printable(&found(entry, keys).unwrap_or_default()),
        };
        self.0.iter().map(part).chain(["\n".to_owned()]).collect()
    }

    /// Returns the paths that no entry has: misspelt, or a key that is there for others only.
    pub(super) fn absent(&self, value: &Value) -> Vec<String> {
        let entries = match value {
            Value::Array(entries) => entries.as_slice(),
            entry => std::slice::from_ref(entry),
        };
        let is_absent = |keys: &Vec<String>| !entries.iter().any(|entry| found(entry, keys).is_some());
        let paths = self.0.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Path(keys) => Some(keys),
        });
        let absent = paths.filter(|keys| is_absent(keys)).map(|keys| format!(".{}", keys.join(".")));
        if entries.is_empty() { Vec::new() } else { absent.collect() }
    }
}

/// Returns the text of the value; `None`: the entry has no such key.
fn found(value: &Value, keys: &[String]) -> Option<String> {
    match (keys, value) {
        ([], Value::String(text)) => Some(text.clone()),
        ([], other) => Some(other.to_string()),
        ([key, rest @ ..], Value::Array(elements)) if key == "*" => {
            let each = elements.iter().map(|element| found(element, rest).unwrap_or_default());
            Some(each.collect::<Vec<_>>().join(","))
        }
        ([key, rest @ ..], Value::Array(elements)) => found(elements.get(key.parse::<usize>().ok()?)?, rest),
        ([key, rest @ ..], value) => found(value.get(key)?, rest),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lines(template: &str, value: &Value) -> String {
        template.parse::<Template>().unwrap().lines(value)
    }

    #[test]
    fn each_entry_is_a_line() {
        let listing = json!([
            {"id": "a", "pid": 7, "cards": [{"uuid": "GPU-1"}, {"uuid": "GPU-2"}]},
            {"id": "b", "pid": null, "cards": [], "pod": {"name": "p"}},
        ]);
        assert_eq!(lines("{{.id}}", &listing), "a\nb\n");
        assert_eq!(lines("{{ .id }}\\t{{.pid}} of {{.cards.*.uuid}}", &listing), "a\t7 of GPU-1,GPU-2\nb\tnull of \n");
        assert_eq!(lines("{{.cards.0.uuid}}{{.pod.name}}", &listing), "GPU-1\np\n");
        assert_eq!(lines("{{.id}}: {{.pod}}", &listing[1]), "b: {\"name\":\"p\"}\n");
        assert_eq!(lines("{{.id}}", &json!([])), "");
    }

    #[test]
    fn values_cannot_leave_their_line() {
        assert_eq!(lines("{{.id}}", &json!([{"id": "a\n\u{1b}[2J\u{202e}"}])), "a??[2J?\n");
    }

    #[test]
    fn what_no_entry_has_is_known() {
        let absent = |template: &str, value: Value| template.parse::<Template>().unwrap().absent(&value);
        assert_eq!(absent("{{.id}} {{.pdi}} {{.cards.*.uuid}}", json!([{"id": 1, "cards": []}])), [".pdi"]);
        assert_eq!(absent("{{.pdi}}", json!([])), [""; 0], "nobody knows");
    }

    #[test]
    fn wrong_templates_are_refused() {
        for wrong in ["", "id", "{{id}}", "{{.}}", "{{.id", "{{.a..b}}", "{{range .cards}}", "{{.cards[0]}}"] {
            assert_eq!(wrong.parse::<Template>(), Err(ParseTemplateError), "{wrong:?}");
        }
    }
}
