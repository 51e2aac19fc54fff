//! Facts that only the driver's C code has: controls that it exports, pointers that it follows,
//! commands that it takes.

use std::collections::BTreeSet;

use crate::release::{CONTROL_FLAGS, DEPRECATED, EMBEDDED_COPY, Release, ReleaseError, UVM_COMMANDS, read};

/// A control that a class of the driver exports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Export {
    pub(crate) id: u32,
    /// True where programs without privileges may ask it (`RMCTRL_FLAGS_NON_PRIVILEGED`).
    pub(crate) open: bool,
    /// Type of its parameters; `None`: it has none.
    pub(crate) params: Option<String>,
}

/// A pointer of a control's parameters that the driver follows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Followed {
    /// Name of the control.
    pub(crate) control: String,
    /// Name of the pointer in the parameters.
    pub(crate) pointer: String,
    /// Name of the number of elements in the parameters; `None`: it is computed, or always the
    /// same.
    pub(crate) count: Option<String>,
    /// Size of an element as in C, `sizeof(NvU32)`.
    pub(crate) element: String,
}

/// Facts that a release's code states.
#[derive(Debug)]
pub(crate) struct DriverSource {
    pub(crate) exports: Vec<Export>,
    pub(crate) followed: Vec<Followed>,
    /// Controls with an embedded pointer, also where it could not be read how it is followed.
    pub(crate) pointing: BTreeSet<String>,
    /// Commands of UVM.
    pub(crate) uvm_commands: BTreeSet<String>,
}

impl DriverSource {
    /// Reads a release's code.
    pub(crate) fn read(release: &Release) -> Result<Self, ReleaseError> {
        let mut exports = Vec::new();
        let flags = release.source(CONTROL_FLAGS)?;
        let open = flag_of_open(&flags).ok_or_else(|| ReleaseError::Missing(release.folder.join(CONTROL_FLAGS)))?;
        for path in release.export_tables()? {
            exports.extend(exports_of(&read(&path)?, open));
        }
        let copies = release.source(EMBEDDED_COPY)?;
        let converters = release.source_if_any(DEPRECATED)?;
        let mut followed = copied(&copies);
        followed.extend(converted(&converters));
        let mut pointing: BTreeSet<String> = cases(&copies).map(|(control, _)| control.to_owned()).collect();
        pointing.extend(converter_table(&converters));
        let uvm_commands = routed(&release.source(UVM_COMMANDS)?);
        Ok(Self { exports, followed, pointing, uvm_commands })
    }
}

/// Controls of a generated file, each with its `/*flags=*/ 0x10bu,`, `/*methodId=*/ 0x102u,` and,
/// on the next line, `/*paramSize=*/ sizeof(TYPE),`.
fn exports_of(text: &str, open: u32) -> Vec<Export> {
    let (mut exports, mut flags, mut id) = (Vec::new(), None, None);
    for line in text.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/*flags=*/") {
            flags = hex(text);
        } else if let Some(text) = line.strip_prefix("/*methodId=*/") {
            id = hex(text);
        } else if let (Some(text), Some(id)) = (line.strip_prefix("/*paramSize=*/"), id.take()) {
            let params = text.trim().trim_end_matches(',').strip_prefix("sizeof(");
            let params = params.and_then(|rest| rest.strip_suffix(')')).map(str::to_owned);
            exports.push(Export { id, open: flags.take().is_some_and(|flags| flags & open != 0), params });
        }
    }
    exports
}

/// `#define RMCTRL_FLAGS_NON_PRIVILEGED 0x000000008`: it has not always been this bit.
fn flag_of_open(text: &str) -> Option<u32> {
    text.lines().find_map(|line| hex(line.strip_prefix("#define RMCTRL_FLAGS_NON_PRIVILEGED ")?))
}

/// A number in `0x10bu,`.
fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().trim_end_matches(',').trim_end_matches('u').strip_prefix("0x")?, 16).ok()
}

/// Controls of `embeddedParamCopyIn()`, each with the text of its case.
fn cases(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let begin = text.find("NV_STATUS embeddedParamCopyIn").unwrap_or(text.len());
    let body = text.get(begin..).unwrap_or_default();
    let body = body.get(..body.find("\n}").unwrap_or(body.len())).unwrap_or_default();
    // Cases within a case are indented further.
    body.split("\n        case ").skip(1).filter_map(|case| case.split_once(':')).filter(|(name, _)| is_name(name))
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Pointers of `embeddedParamCopyIn()`: `RMAPI_PARAM_COPY_INIT(copy, kernel's, user's, elements,
/// size of one)`.
fn copied(text: &str) -> Vec<Followed> {
    let mut followed = Vec::new();
    for (control, case) in cases(text) {
        for call in case.split("RMAPI_PARAM_COPY_INIT(").skip(1) {
            let arguments = arguments(call);
            if let [_, _, pointer, count, element] = arguments.as_slice() {
                followed.push(Followed {
                    control: control.to_owned(),
                    pointer: member(pointer).unwrap_or_default(),
                    count: member(count),
                    element: element.clone(),
                });
            }
        }
    }
    followed
}

/// Pointers of the converters: `CONVERT_TO_V2(new control, type, new type, list, new list, size, is
/// a count, element, ...)` in the function of the control's name.
fn converted(text: &str) -> Vec<Followed> {
    let mut followed = Vec::new();
    for function in text.split("\nstatic NV_STATUS V2_CONVERTER(_").skip(1) {
        let Some((control, body)) = function.split_once(')') else { continue };
        let body = body.get(..body.find("\n}").unwrap_or(body.len())).unwrap_or_default();
        let calls = body.split("CONVERT_TO_V2(").skip(1).chain(body.split("CONVERT_TO_V2_EX(").skip(1));
        for arguments in calls.map(arguments) {
            let [_, _, _, list, _, size, is_count, element, ..] = arguments.as_slice() else { continue };
            let element = if is_count == "NV_TRUE" { format!("sizeof({element})") } else { String::from("1") };
            followed.push(Followed {
                control: control.to_owned(),
                pointer: list.clone(),
                count: Some(size.clone()),
                element,
            });
        }
    }
    followed
}

/// Controls of the table of converters: `{ CONTROL, V2_CONVERTER(...) },`.
fn converter_table(text: &str) -> impl Iterator<Item = String> {
    let rows = text.lines().filter(|line| line.contains("V2_CONVERTER(_"));
    rows.filter_map(|line| Some(line.trim().strip_prefix('{')?.split_once(',')?.0.trim().to_owned()))
}

/// Arguments of a call, given the text after its parenthesis, without comments.
fn arguments(text: &str) -> Vec<String> {
    let (mut arguments, mut depth) = (vec![String::new()], 1_u32);
    for line in text.lines() {
        for letter in line.split("//").next().unwrap_or_default().chars() {
            match letter {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return arguments.iter().map(|argument| argument.trim().to_owned()).collect();
            }
            if letter == ',' && depth == 1 {
                arguments.push(String::new());
            } else if let Some(last) = arguments.last_mut() {
                last.push(letter);
            }
        }
    }
    Vec::new()
}

/// The member in `((TYPE*)pParams)->member`; `None` for anything else.
fn member(expression: &str) -> Option<String> {
    let member = expression.rsplit_once("->")?.1.trim().trim_end_matches(')');
    is_name(member).then(|| member.to_owned())
}

/// Commands of `uvm_ioctl()`: `UVM_ROUTE_CMD_STACK_INIT_CHECK(UVM_FREE, ...)`.
fn routed(text: &str) -> BTreeSet<String> {
    let commands = text.split("UVM_ROUTE_CMD_").skip(1);
    let names = commands.filter_map(|rest| Some(rest.split_once('(')?.1.split_once(',')?.0.trim()));
    names.filter(|name| name.starts_with("UVM_") && is_name(name)).map(str::to_owned).collect()
}
